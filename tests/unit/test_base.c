/* Objects, scopes, errors, the log, the caching allocator, random numbers. */
#include "base/log.h"
#include "base/memory.h"
#include "base/object.h"
#include "base/rng.h"
#include "device/cpu/cache.h"
#include "device/device.h"
#include "sanitized.h"

#include <trireme/trireme.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Objects and scopes ---------------------------------------------------------------------------------------------- */

typedef struct thing {
    tr__object object;
    int *destroyed;
} thing;

static void thing_destroy(void *self)
{
    thing *t = self;
    if (t->destroyed) ++*t->destroyed;
}

static const tr__type thing_type = {"thing", sizeof(thing), thing_destroy};

static thing *thing_new(int *destroyed)
{
    thing *t = tr__object_new(&thing_type);
    t->destroyed = destroyed;
    return t;
}

static void scopes_end_what_they_hold(void **state)
{
    (void)state;
    int gone = 0;
    thing *kept;
    {
        TR_SCOPE;
        for (int i = 0; i < 1000; i++) thing_new(&gone);
        kept = tr_keep(thing_new(&gone));
        assert_int_equal(gone, 0);
    }
    assert_int_equal(gone, 1000);
    tr_release(kept);
    assert_int_equal(gone, 1001);
}

/* A reference that nobody took is not given back: the scope's stays, and the object says what was wrong. */
static void what_only_scopes_hold_is_not_released(void **state)
{
    (void)state;
    int gone = 0;
    {
        TR_SCOPE;
        thing *t = thing_new(&gone), *twice = thing_new(&gone), *kept = tr_keep(thing_new(&gone));
        tr_release(t);
        tr_release(t);
        assert_int_equal(gone, 0);
        assert_int_equal(tr_status_of(t), TR_STATE);
        assert_string_equal(tr_error_message(), "tr_release: no tr_keep() took a reference to this thing: only its scope has one, "
                                                "which it gives back when it ends");
        tr__scope_ref(twice);
        tr_release(twice);
        assert_int_equal(tr_status_of(twice), TR_STATE);
        tr_release(kept);
        assert_int_equal(tr_status_of(kept), TR_OK);
        tr_release(kept);
        assert_int_equal(tr_status_of(kept), TR_STATE);
        assert_int_equal(gone, 0);
    }
    assert_int_equal(gone, 3);
}

/* As another library makes its own objects: by the public header alone. */
static void a_program_has_objects_of_its_own(void **state)
{
    (void)state;
    typedef struct own {
        tr_object object;
        int *destroyed;
    } own;
    _Static_assert(sizeof(own) == sizeof(thing) && offsetof(own, destroyed) == offsetof(thing, destroyed), "one destroy");
    static const tr_object_type own_type = {"own", sizeof(own), thing_destroy};
    int gone = 0;
    own *kept, *broken;
    {
        TR_SCOPE;
        ((own *)tr_object_new(&own_type))->destroyed = &gone;
        kept = tr_keep((own *)tr_object_new(&own_type));
        assert_int_equal(tr_status_of(kept), TR_OK);
        assert_null(kept->destroyed);
        kept->destroyed = &gone;
        broken = tr_object_new(&own_type);
        tr_status first = tr_fail(TR_SHAPE, "the %s failure", "first");
        assert_int_equal(tr_object_break(broken), first);
        assert_int_equal(tr_fail(TR_IO, "another"), TR_IO);
        assert_int_equal(tr_object_break(broken), TR_SHAPE);
        assert_int_equal(tr_status_of(broken), TR_SHAPE);
        assert_string_equal(tr_error_message(), "the first failure");
    }
    assert_int_equal(gone, 1);
    tr_release(kept);
    assert_int_equal(gone, 2);
}

static thing *make_inside(int *gone)
{
    TR_SCOPE;
    thing_new(gone);
    thing *result = thing_new(gone);
    thing_new(gone);
    thing_new(gone);
    return tr_escape(result);
}

static void escape_hands_to_the_scope_around(void **state)
{
    (void)state;
    int gone = 0;
    {
        TR_SCOPE;
        thing *a = make_inside(&gone);
        assert_int_equal(gone, 3);
        thing *b = make_inside(&gone);
        assert_int_equal(gone, 6);
        assert_ptr_not_equal(a, b);
        assert_int_equal(tr__refs(a), 1);
    }
    assert_int_equal(gone, 8);
}

static void leaving_early_ends_scopes(void **state)
{
    (void)state;
    int gone = 0;
    for (int i = 0; i < 10; i++) {
        TR_SCOPE;
        thing_new(&gone);
        if (i == 3) break;
        TR_SCOPE;
        thing_new(&gone);
        if (i == 1) continue;
        thing_new(&gone);
    }
    assert_int_equal(gone, 3 + 2 + 3 + 1);
}

static void *thread_makes_things(void *gone)
{
    thing_new(gone); /* outside every scope */
    tr_scope_push();
    thing_new(gone); /* in a scope that is never popped */
    return NULL;
}

static void a_thread_that_ends_gives_up_its_handles(void **state)
{
    (void)state;
    int gone = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, thread_makes_things, &gone), 0);
    pthread_join(thread, NULL);
    assert_int_equal(gone, 2);
}

/* Where other libraries have taken all keys of threads, theirs are left alone. */
static void without_a_key_a_thread_has_scopes_all_the_same(void **state)
{
    (void)state;
    pid_t child = fork(); /* before this process has had a scope */
    assert_true(child >= 0);
    if (child == 0) {
        pthread_key_t key;
        while (pthread_key_create(&key, NULL) == 0) continue;
        const void *before = pthread_getspecific(0);
        int gone = 0;
        tr_scope_push();
        thing_new(&gone);
        tr_scope_pop();
        _exit(gone == 1 && pthread_getspecific(0) == before ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
}

static void errors_travel(void **state)
{
    (void)state;
    TR_SCOPE;
    thing *bad = tr__object_fail(&thing_type, TR_SHAPE, "%d is odd", 3);
    tr__fail(TR_IO, "something else");
    thing *passed = tr__object_pass(&thing_type, bad);
    assert_int_equal(tr_status_of(passed), TR_SHAPE);
    assert_string_equal(tr_error_message(), "3 is odd");
    assert_int_equal(tr__fail_context(TR_SHAPE, "loading \"%s\"", "x"), TR_SHAPE);
    assert_string_equal(tr_error_message(), "loading \"x\": 3 is odd");
    assert_int_equal(tr__fail_errno(TR_IO, 2, "open %s", "f"), TR_IO);
    assert_string_equal(tr_error_message(), "open f: No such file or directory");
    assert_int_equal(tr_status_of(NULL), TR_OK);

    thing *broken = thing_new(NULL);
    tr__fail(TR_STATE, "first");
    tr__object_break(broken);
    tr__fail(TR_IO, "second");
    assert_int_equal(tr__object_break(broken), TR_STATE);
    assert_int_equal(tr_status_of(broken), TR_STATE);
    assert_string_equal(tr_error_message(), "first");
}

/* What acts on a terminal, in UTF-8 and in 8-bit encodings; letters of either stay. */
static void text_is_made_printable(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"layer.0 \"x\" ~", "layer.0 \"x\" ~"},
        {"\x1b]0;mine\x07 \x1b[2J\x7f", "?]0;mine? ?[2J?"},
        {"one\ntwo\r\tthree\b", "one\ntwo?\tthree?"},
        {"f\303\274r \342\202\254 \360\237\230\200 \xc2\xa0", "f\303\274r \342\202\254 \360\237\230\200 \xc2\xa0"},
        {"f\374r \xa0", "f\374r \xa0"},                                                       /* Latin-1 */
        {"\xc5\x9b \xe2\x80\x9b \xf0\x90\x9b\x9b", "\xc5\x9b \xe2\x80\x9b \xf0\x90\x9b\x9b"}, /* as parts of letters */
        {"\x9b"
         "2J \x85",
         "?2J ?"},
        {"\xc2\x9b"
         "2J \xc2\x80 \xc2\x9f",
         "??2J ?? ??"},
        {"\xc5\x9b\x9b \xc5x\x9b", "\xc5\x9b? \xc5x?"},
        {"\xc0\x9b \xe0\x80\x9b \xf0\x80\x80\x9b", "\xc0? ??? ????"}, /* overlong */
        {"\xc2", "\xc2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        strcpy(text, cases[i][0]);
        assert_ptr_equal(tr_printable(text), text);
        assert_string_equal(text, cases[i][1]);
        assert_string_equal(tr_printable(text), cases[i][1]);
        assert_int_equal(tr_fail(TR_IO, "<%s>", cases[i][0]), TR_IO);
        assert_int_equal(strlen(tr_error_message()), strlen(cases[i][1]) + 2);
        assert_int_equal(strncmp(tr_error_message() + 1, cases[i][1], strlen(cases[i][1])), 0);
    }
}

static void keep_message(tr_log_level level, const char *message, void *user)
{
    (void)level;
    strncpy(user, message, 63);
}

static void messages_of_the_log_are_printable(void **state)
{
    (void)state;
    char kept[64] = "";
    tr_set_log(keep_message, kept, TR_LOG_WARN);
    tr__log(TR_LOG_WARN, "a file named %s", "\x1b[2J");
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    assert_string_equal(kept, "a file named ?[2J");
}

static void keep_all(tr_log_level level, const char *message, void *user)
{
    (void)level;
    free(*(char **)user);
    *(char **)user = strdup(message);
}

/* The end of a message is what to do about it. */
static void long_messages_of_the_log_are_whole(void **state)
{
    (void)state;
    char text[3000], *kept = NULL;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tr_set_log(keep_all, &kept, TR_LOG_WARN);
    tr__log(TR_LOG_WARN, "%s: the end\x1b", text);
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    assert_non_null(kept);
    assert_int_equal(strlen(kept), sizeof text - 1 + strlen(": the end?"));
    assert_string_equal(kept + sizeof text - 1, ": the end?");
    free(kept);
}

/* What a child of this process writes to stderr before it ends, and its exit code. */
static int stderr_of(void (*body)(void), char *text, size_t size)
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout); /* or the child that exits writes it, too */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], text + length, size - 1 - length)) > 0;) length += (size_t)n;
    text[length] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void logs_two(void)
{
    tr__log(TR_LOG_WARN, "worth a %s", "warning");
    tr__log(TR_LOG_INFO, "worth knowing");
}

static void logs_by_itself(void)
{
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    logs_two();
}

static void the_environment_turns_the_log_on(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        void (*body)(void);
        const char *text;
    } cases[] = {
        {NULL, logs_two, ""},
        {"", logs_two, ""},
        {"off", logs_two, ""},
        {"error", logs_two, ""},
        {"warn", logs_two, "trireme: warn: worth a warning\n"},
        {"debug", logs_two, "trireme: warn: worth a warning\ntrireme: info: worth knowing\n"},
        {"warn", logs_by_itself, ""},
        {"loud", logs_two, "trireme: warn: TRIREME_LOG=loud: it is off, error, warn, info or debug; warn is assumed\n"
            "trireme: warn: worth a warning\n"},
    };
    char text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsetenv("TRIREME_LOG");
        if (cases[i].value) setenv("TRIREME_LOG", cases[i].value, 1);
        assert_int_equal(stderr_of(cases[i].body, text, sizeof text), 0);
        unsetenv("TRIREME_LOG");
        assert_string_equal(text, cases[i].text);
    }
}

static void check_end_of_a_loop(void)
{
    TR_CHECK_END(TR_END);
    TR_CHECK_END(TR_OK);
    (void)tr_fail(TR_IO, "an earlier failure");
    TR_CHECK(TR_END);
}

static void check_failure_of_a_loop(void)
{
    tr_status s = tr_fail(TR_IO, "the disk is gone");
    TR_CHECK_END(s);
}

static void the_end_of_a_loop_is_no_failure(void **state)
{
    (void)state;
    char text[1024];
    assert_int_equal(stderr_of(check_end_of_a_loop, text, sizeof text), EXIT_FAILURE);
    assert_non_null(strstr(text, ": the end of an epoch or a stream is no failure: check a loop's status by TR_CHECK_END()\n  TR_END ("));
    assert_null(strstr(text, "an earlier failure"));
    assert_int_equal(stderr_of(check_failure_of_a_loop, text, sizeof text), EXIT_FAILURE);
    assert_true(text[0] != '/' && strstr(text, "tests/unit/test_base.c:")); /* not where the tree lay when it was built */
    assert_non_null(strstr(text, ": the disk is gone\n  TR_IO ("));
    assert_non_null(strstr(text, " from s\n"));
}

static void names_are_known(void **state)
{
    (void)state;
    assert_string_equal(tr_status_name(TR_MISMATCH), "TR_MISMATCH");
    assert_string_equal(tr_status_name(-7), "no tr_status");
    assert_string_equal(tr_dtype_name(TR_BF16), "bf16");
    assert_int_equal(tr_dtype_size((tr_dtype)99), 0);
    assert_true(tr_dtype_is_float(TR_F16) && !tr_dtype_is_float(TR_I64));
}

static void what_is_gone_says_so(void **state)
{
    (void)state;
    if (SANITIZED) {
        print_message("the sanitizer sees the use of what is gone itself: skipped\n");
        skip();
    }
    tr_tensor *x;
    {
        TR_SCOPE;
        x = tr_ones(TR_SHAPE(2, 3));
    }
    assert_int_equal(tr_status_of(x), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "this object is gone: its scope has ended"));
    assert_int_equal(tr_numel(x), 0);
    tr_release(tr_keep(x)); /* references to it are not counted */
    assert_true(isnan(tr_item(x)));
    assert_non_null(strstr(tr_error_message(), "is gone"));
    TR_SCOPE;
    tr_tensor *passed = tr_add(x, x); /* its head may be reused for this */
    assert_int_equal(tr_status_of(passed), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "is gone"));
    assert_int_equal(tr__refs(tr_keep(passed)), 2); /* that one is not gone */
    tr_release(passed);
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------------- */

typedef struct held {
    unsigned char *memory;
    size_t bytes;
    unsigned char fill;
} held;

static void check_and_free(tr__cache *cache, held *h)
{
    for (size_t i = 0; i < h->bytes; i += 997) assert_int_equal(h->memory[i], h->fill);
    assert_int_equal(h->memory[h->bytes - 1], h->fill);
    tr__cache_free(cache, h->memory, h->bytes);
    h->memory = NULL;
}

static void blocks_never_overlap(void **state)
{
    (void)state;
    tr__cache *cache = tr__cache_new();
    held blocks[64] = {{0}};
    uint64_t random = 1;
    size_t in_use, peak;
    for (int round = 0; round < 4000; round++) {
        random = tr__mix(random, 1);
        held *h = &blocks[random % 64];
        if (h->memory) check_and_free(cache, h);
        h->bytes = 1 + (size_t)(random >> 20) % (random & 64 ? 3000 : 3000000);
        h->fill = (unsigned char)round;
        h->memory = tr__cache_alloc(cache, h->bytes);
        assert_non_null(h->memory);
        assert_int_equal((uintptr_t)h->memory % 64, 0);
        memset(h->memory, h->fill, h->bytes);
    }
    for (int i = 0; i < 64; i++)
        if (blocks[i].memory) check_and_free(cache, &blocks[i]);
    tr__cache_usage(cache, &in_use, &peak);
    assert_int_equal(in_use, 0);
    assert_true(peak > 0 && peak < 64u * 3000000u);

    /* All has merged again: a block of the whole size is where the first one was. */
    void *first = tr__cache_alloc(cache, 100000), *second = tr__cache_alloc(cache, 100000);
    tr__cache_free(cache, first, 100000);
    tr__cache_free(cache, second, 100000);
    assert_null(tr__cache_alloc(cache, SIZE_MAX - 5));
    tr__cache_delete(cache);
}

static void free_blocks_go_back_to_the_system(void **state)
{
    (void)state;
    enum { BYTES = 5 << 20 };
    tr__cache *cache = tr__cache_new();
    unsigned char *gone = tr__cache_alloc(cache, BYTES), *stays = tr__cache_alloc(cache, BYTES);
    assert_true(gone && stays);
    memset(gone, 7, BYTES);
    memset(stays, 9, BYTES);
    tr__cache_free(cache, gone, BYTES);
    tr__cache_trim(cache);
    for (int i = 0; i < BYTES; i++) assert_int_equal(stays[i], 9);
    unsigned char *again = tr__cache_alloc(cache, BYTES);
    assert_non_null(again);
    if (!SANITIZED) { /* AddressSanitizer has blocks of its own */
        assert_ptr_equal(again, gone);
        for (int i = 0; i < BYTES; i++) assert_int_equal(again[i], 0);
    }
    tr__cache_free(cache, again, BYTES);
    tr__cache_free(cache, stays, BYTES);
    tr__cache_delete(cache);
}

static void large_blocks_can_be_shared(void **state)
{
    (void)state;
    tr__segment segment;
    void *small, *odd;
    char *large, *next;
    assert_int_equal(tr_shared_memalign(&small, 64, 1000), 0);
    assert_int_equal(tr_shared_memalign((void **)&large, 64, 100000), 0);
    assert_int_equal(tr_shared_memalign((void **)&next, 64, 3 << 20), 0);
    assert_int_equal(tr_shared_memalign(&odd, 1 << 16, 1 << 20), 0);
    assert_false(tr__segment_find(small, 1000, &segment));
    assert_true(tr__segment_find(large, 100000, &segment) && tr__segment_find(next, 3 << 20, &segment));
    assert_false(tr__segment_find(odd, 1 << 20, &segment));
    assert_int_equal((uintptr_t)odd % (1 << 16), 0);
    assert_int_equal(tr_shared_memalign(&(void *){NULL}, 24, 1 << 20), EINVAL);
    memset(next, 1, 3 << 20);
    memset(large, 2, 100000);
    assert_int_equal(next[0], 1);

    /* A child has copies: neither sees what the other writes to a page that both have. */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool alone = !tr__segment_find(large, 1, &segment) && large[0] == 2;
        large[0] = 3;
        void *more;
        alone = alone && tr_shared_memalign(&more, 64, 1 << 20) == 0;
        if (alone) memset(more, 4, 1 << 20);
        tr_shared_memalign_free(large);
        tr_shared_memalign_free(small);
        _exit(alone ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(large[0] == 2 && tr__segment_find(large, 1, &segment));

    tr_shared_memalign_free(large);
    void *again;
    assert_int_equal(tr_shared_memalign(&again, 64, 90000), 0);
    assert_ptr_equal(again, large);
    tr_shared_memalign_free(again);
    tr_shared_memalign_free(next);
    tr_shared_memalign_free(small);
    tr_shared_memalign_free(odd);
    tr_shared_memalign_free(NULL);
}

static void shared_memory_is_found_by_its_address(void **state)
{
    (void)state;
    char *memory = tr_shared_alloc(10000);
    assert_non_null(memory);
    for (int i = 0; i < 10000; i++) assert_int_equal(memory[i], 0);
    tr__segment segment;
    assert_true(tr__segment_find(memory + 5000, 5000, &segment));
    assert_ptr_equal(segment.memory, memory);
    assert_int_equal(segment.bytes, 12288);
    assert_false(tr__segment_find(memory + 12288, 1, &segment));
    assert_false(tr__segment_find(memory, 20000, &segment));
    tr_shared_free(memory);
    assert_false(tr__segment_find(memory, 1, &segment));
    assert_null(tr_shared_alloc((size_t)1 << 50));
    assert_non_null(strstr(tr_error_message(), "shared"));
}

static void what_is_too_large_to_share_is_named(void **state)
{
    (void)state;
    assert_null(tr_shared_alloc(SIZE_MAX));
    assert_string_equal(tr_error_message(), "cannot get 18446744073709551615 bytes of shared memory: Cannot allocate memory");
}

/* ---- Random numbers ---------------------------------------------------------------------------------------------------------- */

/* Known answers of the paper's reference implementation (Random123, kat_vectors). */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    tr__philox r = tr__philox_at(0, 0, 0);
    assert_true(r.word[0] == 0x6627e8d5 && r.word[1] == 0xe169c58d && r.word[2] == 0xbc57ac4c && r.word[3] == 0x9b00dbd8);
    r = tr__philox_at(UINT64_MAX, UINT64_MAX, UINT64_MAX);
    assert_true(r.word[0] == 0x408f276d && r.word[1] == 0x41c83b0e && r.word[2] == 0xa20bc7c6 && r.word[3] == 0x6d5451fd);
    r = tr__philox_at(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88);
    assert_true(r.word[0] == 0xd16cfe09 && r.word[1] == 0x94fdcceb && r.word[2] == 0x5001e420 && r.word[3] == 0x24126ea1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_turns_the_log_on), /* first: a process reads it once, and children inherit that */
        cmocka_unit_test(without_a_key_a_thread_has_scopes_all_the_same), /* before the first scope */
        cmocka_unit_test(scopes_end_what_they_hold),
        cmocka_unit_test(what_only_scopes_hold_is_not_released),
        cmocka_unit_test(a_program_has_objects_of_its_own),
        cmocka_unit_test(what_is_gone_says_so),
        cmocka_unit_test(escape_hands_to_the_scope_around),
        cmocka_unit_test(leaving_early_ends_scopes),
        cmocka_unit_test(a_thread_that_ends_gives_up_its_handles),
        cmocka_unit_test(errors_travel),
        cmocka_unit_test(text_is_made_printable),
        cmocka_unit_test(messages_of_the_log_are_printable),
        cmocka_unit_test(long_messages_of_the_log_are_whole),
        cmocka_unit_test(the_end_of_a_loop_is_no_failure),
        cmocka_unit_test(names_are_known),
        cmocka_unit_test(blocks_never_overlap),
        cmocka_unit_test(free_blocks_go_back_to_the_system),
        cmocka_unit_test(large_blocks_can_be_shared),
        cmocka_unit_test(shared_memory_is_found_by_its_address),
        cmocka_unit_test(what_is_too_large_to_share_is_named),
        cmocka_unit_test(philox_gives_the_known_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
