/*
 * The flight recorder: its ring, readers that come at any moment, records that are no records, the files of a failure,
 * and what is concluded about ranks that wait.
 */
#include "base/clock.h"
#include "comm/record/record.h"
#include "comm_ranks.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static tr__recorder *open_rank(const char *group, int number, int world, const char *backend, const char *folder)
{
    tr__recorder *r = tr__recorder_open(&(tr__recorder_options){
        .job = "unit", .group = group, .backend = backend, .rank = number, .world_size = world, .folder = folder});
    assert_non_null(r);
    return r;
}

static tr_collective call_number(int64_t n)
{
    return (tr_collective){.size = sizeof(tr_collective), .kind = TR_ALL_REDUCE, .count = n, .tag = (int)n, .line = (int)n,
        .timeout_ms = 1000, .file = "tests/train.c"};
}

/* Makes a call and ends it. */
static void make_call(tr__recorder *r, uint64_t sequence)
{
    tr_collective c = call_number((int64_t)sequence);
    tr__recorder_end(r, tr__recorder_start(r, 0, &c, sequence), TR_OK);
}

/* Enters a call and stays in it. */
static void enter(tr__recorder *r, tr_collective_kind kind, uint64_t sequence, int peer)
{
    tr_collective c = call_number(8);
    c.kind = kind;
    c.peer = peer;
    assert_true(tr__recorder_start(r, 0, &c, sequence) != 0);
}

static void read_own(tr__records *records, int count)
{
    assert_int_equal(tr__records_read(getpid(), records), TR_OK);
    assert_int_equal(records->count, count);
}

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

static void the_latest_calls_are_kept(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 1, 4, "native", NULL);
    tr__recorder_joined(r);
    for (uint64_t n = 1; n <= 1000; n++) make_call(r, n);
    tr__records records;
    read_own(&records, 1);
    const tr__record *record = &records.list[0];
    assert_string_equal(record->job, "unit");
    assert_int_equal(record->rank, 1);
    assert_int_equal(record->world_size, 4);
    assert_int_equal(record->pid, getpid());
    assert_int_equal(record->state, TR__RECORD_JOINED);
    assert_int_equal(record->call_count, TR__RECORD_ENTRIES);
    for (int i = 0; i < TR__RECORD_ENTRIES; i++) {
        const tr__record_call *c = &record->calls[i];
        assert_int_equal(c->signature.sequence, 1000 - TR__RECORD_ENTRIES + 1 + i);
        assert_string_equal(c->signature.file, "tests/train.c");
        assert_true(c->posted > 0 && c->posted <= c->started && c->started <= c->ended);
    }
    assert_null(tr__record_running(record));
    assert_int_equal(tr__record_last(record)->signature.sequence, 1000);
    tr__records_free(&records);
    tr__recorder_close(r);
}

static void calls_under_way_are_not_overwritten(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    tr_collective c = call_number(7777);
    uint64_t queued = tr__recorder_post(r, &c);
    for (uint64_t n = 1; n <= 1000; n++) make_call(r, n);
    uint64_t running = tr__recorder_start(r, queued, &c, 1001);
    assert_int_equal(running, queued);
    for (uint64_t n = 2001; n <= 3000; n++) make_call(r, n);
    tr__records records;
    read_own(&records, 1);
    const tr__record_call *now = tr__record_running(&records.list[0]);
    assert_non_null(now);
    assert_int_equal(now->signature.sequence, 1001);
    assert_int_equal(now->signature.count, 7777);
    assert_true(now->started > now->posted);
    tr__records_free(&records);

    tr__recorder_end(r, running, TR_OK);
    tr__recorder_end(r, running, TR_TIMEOUT); /* counts once */
    read_own(&records, 1);
    assert_null(tr__record_running(&records.list[0]));
    tr__records_free(&records);

    /* When all are under way there is no room, which is no failure. */
    for (int i = 0; i < TR__RECORD_ENTRIES; i++) assert_true(tr__recorder_post(r, &c) != 0);
    assert_int_equal(tr__recorder_post(r, &c), 0);
    tr__recorder_end(r, 0, TR_OK);
    tr__recorder_close(r);
}

static void long_paths_keep_their_end(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    tr_collective c = call_number(1);
    c.file = "/a/very/long/path/that/goes/on/and/on/until/it/does/not/fit/any/more/project/src/train.c";
    tr__recorder_end(r, tr__recorder_start(r, 0, &c, 1), TR_OK);
    c.file = NULL;
    tr__recorder_end(r, tr__recorder_start(r, 0, &c, 2), TR_OK);
    tr__records records;
    read_own(&records, 1);
    const char *kept = records.list[0].calls[0].signature.file;
    assert_string_equal(kept + strlen(kept) - strlen("/project/src/train.c"), "/project/src/train.c");
    assert_true(strlen(kept) < TR__RECORD_FILE);
    assert_string_equal(records.list[0].calls[1].signature.file, "");
    tr__records_free(&records);
    tr__recorder_close(r);
}

/* ä is two bytes, and the 55 that there is room for end in one's middle. */
static void long_waits_keep_their_beginning(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    char text[2 * TR__RECORD_FILE + 1] = "", kept[TR__RECORD_FILE] = "";
    for (int i = 0; i < TR__RECORD_FILE; i++) strcat(text, "ä");
    memcpy(kept, text, sizeof kept - 2);
    assert_true(tr__recorder_wait(r, 1, false, text) != 0);
    tr__records records;
    read_own(&records, 1);
    assert_string_equal(records.list[0].calls[0].signature.file, kept);
    tr__records_free(&records);
    assert_int_equal(tr__recorder_fit("äö", 0), 0);
    assert_int_equal(tr__recorder_fit("äö", 1), 0);
    assert_int_equal(tr__recorder_fit("äö", 3), 2);
    assert_int_equal(tr__recorder_fit("äö", 4), 4);
    assert_int_equal(tr__recorder_fit("äö", 9), 4);
    tr__recorder_close(r);
}

static void nothing_is_asked_of_no_recorder(void **state)
{
    (void)state;
    tr_collective c = call_number(1);
    assert_int_equal(tr__recorder_start(NULL, tr__recorder_post(NULL, &c), &c, 1), 0);
    tr__recorder_waits_for(NULL, (int[]){1}, 1);
    tr__recorder_peer(NULL, 1, 1, "host");
    tr__recorder_joined(NULL);
    tr__recorder_end(NULL, 0, TR_PEER);
    tr__recorder_close(NULL);
}

/* A child that gives up what it has of its parent changes nothing of that one's. */
static void a_forked_child_leaves_the_record_alone(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    make_call(r, 1);
    tr_collective c = call_number(2);
    uint64_t running = tr__recorder_start(r, 0, &c, 2);
    pid_t child = fork();
    if (child == 0) {
        tr__recorder_waits_for(r, (int[]){1}, 1);
        tr__recorder_end(r, running, tr_fail(TR_CANCELLED, "dropped by the child"));
        make_call(r, 3);
        tr__recorder_close(r);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    tr__records records;
    read_own(&records, 1);
    assert_int_equal(records.list[0].call_count, 2);
    assert_int_equal(records.list[0].state, TR__RECORD_JOINING);
    assert_int_equal(records.list[0].waits_total, 0);
    const tr__record_call *now = tr__record_running(&records.list[0]);
    assert_non_null(now);
    assert_int_equal(now->signature.sequence, 2);
    tr__records_free(&records);
    tr__recorder_close(r);
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

typedef struct writer {
    tr__recorder *recorder;
    atomic_bool stop;
} writer;

static void *write_calls(void *arg)
{
    writer *w = arg;
    for (uint64_t n = 1; !atomic_load(&w->stop); n++) {
        make_call(w->recorder, n % 100000 + 1);
        int late = (int)(n % 4);
        tr__recorder_waits_for(w->recorder, (int[]){late, late}, n % 2 ? 2 : 0);
    }
    return NULL;
}

/* What a reader gets of an entry is one call: all its numbers are the same one. */
static void readers_skip_torn_entries(void **state)
{
    (void)state;
    writer w = {.recorder = open_rank("world", 0, 4, "native", NULL)};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, write_calls, &w), 0);
    int64_t end = tr__now_ns() + 300000000;
    int seen = 0;
    while (tr__now_ns() < end) {
        tr__records records;
        read_own(&records, 1);
        const tr__record *r = &records.list[0];
        for (int i = 0; i < r->call_count; i++) {
            const tr__signature *s = &r->calls[i].signature;
            if ((uint64_t)s->count != s->sequence || s->line != s->count || s->tag != s->count)
                fail_msg("a torn entry: #%d, count %d, line %d, tag %d", (int)s->sequence, (int)s->count, s->line, s->tag);
            if (i > 0) assert_true(r->calls[i].id > r->calls[i - 1].id);
        }
        for (int i = 1; i < r->waits_count; i++) assert_true(r->waits[i] >= 0 && r->waits[i] < 4);
        seen += r->call_count;
        tr__records_free(&records);
    }
    atomic_store(&w.stop, true);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_true(seen > 0);
    tr__recorder_close(w.recorder);
}

/* The memfd of a record, opened anew and mapped for writing: what a mad process could do. */
static tr__record_header *open_own(int *descriptor)
{
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, TR__RECORD_MEMFD)) continue;
        *descriptor = open(path, O_RDWR | O_CLOEXEC);
        struct stat s;
        assert_int_equal(fstat(*descriptor, &s), 0);
        void *memory = mmap(NULL, (size_t)s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
        assert_true(memory != MAP_FAILED);
        return memory;
    }
    fail_msg("no record");
    return NULL;
}

static void what_is_no_record_is_left_out(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    for (uint64_t n = 1; n <= 3; n++) make_call(r, n);
    int fd = -1;
    tr__record_header *h = open_own(&fd);
    tr__record_entry *entries = (tr__record_entry *)(h + 1);
    close(fd);
    tr__records records;

    entries[0].mark |= 1;    /* being written */
    entries[1].call.what = 0xff; /* no kind */
    memset(h->group, '\033', sizeof h->group);
    read_own(&records, 1);
    assert_int_equal(records.list[0].call_count, 1);
    assert_int_equal(records.list[0].calls[0].signature.sequence, 3);
    for (const char *c = records.list[0].group; *c; c++) assert_int_equal(*c, '?');
    tr__records_free(&records);

    h->waits_total = 1000;
    h->waits[0] = -5;
    read_own(&records, 1);
    for (int i = 0; i < records.list[0].waits_count; i++) assert_in_range(records.list[0].waits[i], 0, 1);
    tr__records_free(&records);
    h->waits_mark = 1; /* for ever being written */
    read_own(&records, 1);
    assert_int_equal(records.list[0].waits_count, 0);
    tr__records_free(&records);

    static const int worlds[] = {-1, 0, 1 << 30, 1000};
    for (int i = 0; i < 4; i++) {
        h->world_size = worlds[i];
        read_own(&records, 0);
    }
    h->world_size = 2;
    h->rank = 2;
    read_own(&records, 0);
    h->rank = 0;
    h->version++;
    read_own(&records, 0);
    h->version--;
    h->magic[0] = 0;
    read_own(&records, 0);
    tr__recorder_close(r);

    /* One that could shrink while it is read. */
    fd = memfd_create(TR__RECORD_MEMFD, MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, 1 << 16) == 0);
    h->magic[0] = 'T';
    assert_true(write(fd, h, sizeof *h) == sizeof *h);
    read_own(&records, 0);
    close(fd);
    munmap(h, sizeof *h + TR__RECORD_ENTRIES * sizeof *entries + 2 * sizeof(tr__record_peer));
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static char *read_file(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file) fail_msg("no file %s", path);
    char *text = calloc(1, 1 << 20);
    assert_true(text && fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    remove(path);
    return text;
}

/* The words stand in text, and then for how long that has lasted: seconds, to the millisecond, and no more of them than have
 * passed since `began`. */
static void check_lasting(const char *text, const char *words, int64_t began)
{
    double passed = (double)(tr__now_ns() - began) * 1e-9;
    const char *at = strstr(text, words), *number = at ? at + strlen(words) : "";
    char *end;
    double said = strtod(number, &end);
    if (end == number || strncmp(end, " s", 2) != 0 || said < 0 || said > passed + 0.0005)
        fail_msg("nothing of '%s', %.3f s at most, in:\n%s", words, passed, text);
}

static void a_failure_leaves_text_and_trace(void **state)
{
    (void)state;
    char folder[] = "/tmp/trireme-test-XXXXXX", inner[64];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/flight", folder);
    tr__recorder *r = open_rank("world", 0, 4, "native", inner), *other = open_rank("rows", 0, 2, "native", NULL);
    for (uint64_t n = 1; n <= 30; n++) make_call(r, n);
    make_call(other, 1);
    tr_collective c = call_number(31);
    int64_t began = tr__now_ns();
    uint64_t record = tr__recorder_start(r, 0, &c, 31);
    tr__recorder_waits_for(r, (int[]){1, 3}, 2);
    tr__recorder_end(r, record, tr_fail(TR_PEER, "rank 1 \"died\""));
    assert_string_equal(tr_error_message(), "rank 1 \"died\"");

    char *text = read_file(inner, "unit-rank0-world.txt"), *trace = read_file(inner, "unit-rank0-world.trace.json");
    assert_non_null(strstr(text, "failed: rank 1 \"died\""));
    check_lasting(text, "now: in all_reduce #31 (sum of f32[31] at tests/train.c:31) for ", began);
    check_lasting(text, "waiting for ranks 1 and 3 for ", began);
    assert_non_null(strstr(text, "done        all_reduce #12 ("));
    assert_null(strstr(text, "all_reduce #11 ("));
    assert_non_null(strstr(text, "group 'rows'"));

    cJSON *json = cJSON_Parse(trace), *event;
    assert_non_null(json);
    int calls = 0, tracks = 0, waiting = 0;
    cJSON_ArrayForEach(event, cJSON_GetObjectItem(json, "traceEvents")) {
        const char *phase = cJSON_GetStringValue(cJSON_GetObjectItem(event, "ph"));
        calls += strcmp(phase, "X") == 0;
        tracks += strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(event, "name")), "thread_name") == 0;
        waiting += cJSON_GetObjectItem(cJSON_GetObjectItem(event, "args"), "waits_for") != NULL;
        if (strcmp(phase, "X") == 0) assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(event, "dur")) >= 0);
    }
    assert_int_equal(calls, 32);
    assert_int_equal(tracks, 2);
    assert_int_equal(waiting, 1);
    cJSON_Delete(json);
    free(text);
    free(trace);

    /* Only the first cause is written. */
    tr__recorder_end(r, tr__recorder_start(r, 0, &c, 32), tr_fail(TR_PEER, "again"));
    assert_int_equal(rmdir(inner), 0);
    assert_int_equal(rmdir(folder), 0);
    tr__recorder_close(r);
    tr__recorder_close(other);
}

static void a_folder_that_cannot_be_made_changes_nothing(void **state)
{
    (void)state;
    tr__recorder *r = open_rank("world", 0, 2, "native", "/proc/nowhere/flight");
    tr_collective c = call_number(1);
    tr__recorder_end(r, tr__recorder_start(r, 0, &c, 1), tr_fail(TR_TIMEOUT, "too late"));
    assert_string_equal(tr_error_message(), "too late");
    tr__recorder_close(r);
}

/* ---- Conclusions ------------------------------------------------------------------------------------------------- */

static void expect(const char *job, const char *words)
{
    char *text;
    assert_int_equal(tr_job_explain(job, &text), TR_OK);
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    free(text);
}

static void expect_lasting(const char *job, const char *words, int64_t began)
{
    char *text;
    assert_int_equal(tr_job_explain(job, &text), TR_OK);
    check_lasting(text, words, began);
    free(text);
}

static void who_waits_for_whom(void **state)
{
    (void)state;
    tr__recorder *r[4];
    int64_t began = tr__now_ns();
    for (int i = 0; i < 4; i++) {
        r[i] = open_rank("world", i, 4, "native", NULL);
        tr__recorder_waits_for(r[i], (int[]){3}, i == 3 ? 0 : 1);
    }
    expect_lasting("unit", "joining for ", began);
    expect_lasting("unit", "is what ranks 0, 1 and 2 wait for: it has not joined (for ", began);
    for (int i = 0; i < 4; i++) {
        tr__recorder_joined(r[i]);
        make_call(r[i], 1);
    }
    expect("unit", "=> nobody waits");

    /* 0 waits for 1, which waits for 2, which is in no call. */
    began = tr__now_ns();
    enter(r[0], TR_ALL_REDUCE, 2, 0);
    tr__recorder_waits_for(r[0], (int[]){1}, 1);
    enter(r[1], TR_ALL_REDUCE, 2, 0);
    tr__recorder_waits_for(r[1], (int[]){2}, 1);
    char words[256];
    snprintf(words, sizeof words, "=> rank 2 (pid %d) is what ranks 0 and 1 wait for: it has not entered all_reduce #2 (sum "
        "of f32[8] at tests/train.c:8) (for ", (int)getpid());
    expect_lasting("unit", words, began);
    for (int i = 0; i < 4; i++) tr__recorder_close(r[i]);
}

/* What is told of waits that began later than one moment and by another one. */
static void expect_stalls(int64_t after, int64_t until, const char *words)
{
    tr__records all;
    char *text;
    read_own(&all, 3);
    assert_int_equal(tr__records_stalls(&all, "unit", after, until, &text), TR_OK);
    if (!words[0]) assert_string_equal(text, "");
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    free(text);
    assert_int_equal(tr__records_stalls(&all, "another", after, until, &text), TR_OK);
    assert_string_equal(text, "");
    free(text);
    tr__records_free(&all);
}

static void a_stall_is_told_when_it_began_then(void **state)
{
    (void)state;
    tr__recorder *r[3];
    int64_t at[4] = {tr__now_ns()};
    for (int i = 0; i < 3; i++) {
        r[i] = open_rank("world", i, 3, "native", NULL);
        tr__recorder_joined(r[i]);
        make_call(r[i], 1);
    }
    expect_stalls(0, tr__now_ns(), "");
    for (int i = 0; i < 2; i++) {
        at[i + 1] = tr__now_ns();
        enter(r[i], TR_ALL_REDUCE, 2, 0);
        tr__recorder_waits_for(r[i], (int[]){2}, 1);
    }
    at[3] = tr__now_ns();
    char words[256];
    snprintf(words, sizeof words, "group 'world': rank 2 (pid %d) is what ranks 0 and 1 wait for: it has not entered "
        "all_reduce #2 (sum of f32[8] at tests/train.c:8) (for ", (int)getpid());
    expect_stalls(0, at[3], words); /* the longer of the two waits counts */
    expect_stalls(at[1] - 1, at[2], words);
    expect_stalls(0, at[1] - 1, "");
    expect_stalls(at[2], at[3], "");

    enter(r[2], TR_RECV, 0, 0);
    expect_stalls(0, tr__now_ns(), "group 'world': ranks 0, 1 and 2 wait for each other: look where their calls differ");
    expect_stalls(tr__now_ns(), INT64_MAX, "");
    for (int i = 0; i < 3; i++) tr__recorder_close(r[i]);
}

static void transfers_wait_for_their_peer(void **state)
{
    (void)state;
    tr__recorder *a = open_rank("world", 0, 2, "native", NULL), *b = open_rank("world", 1, 2, "native", NULL);
    tr__recorder_joined(a);
    tr__recorder_joined(b);
    enter(a, TR_RECV, 0, 1);
    expect("unit", "is what rank 0 waits for: its part of recv (f32[8] from rank 1, tag 8 at tests/train.c:8) is not there");
    enter(b, TR_RECV, 0, 0);
    expect("unit", "=> ranks 0 and 1 wait for each other");

    /* Beside a collective, whose waiting goes on when they end. */
    int64_t began = tr__now_ns();
    enter(a, TR_ALL_REDUCE, 7, 0);
    tr__recorder_waits_for(a, (int[]){1}, 1);
    tr_collective c = call_number(3);
    c.kind = TR_SEND;
    c.peer = 1;
    tr__recorder_end(a, tr__recorder_start(a, 0, &c, 0), TR_OK);
    expect_lasting("unit", "in all_reduce #7 (sum of f32[8] at tests/train.c:8) for ", began);
    tr__records records;
    read_own(&records, 2);
    assert_int_equal(records.list[0].waits_count, 1);
    tr__records_free(&records);
    tr__recorder_close(a);
    tr__recorder_close(b);
}

/* Threads of one rank wait in several remote calls; what is said of a culprit is the wait for it. */
static void the_call_that_waits_for_a_culprit_is_named(void **state)
{
    (void)state;
    tr__recorder *r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = open_rank("world", i, 3, "native", NULL);
        tr__recorder_joined(r[i]);
    }
    assert_true(tr__recorder_wait(r[0], -1, false, "a value that is made here") != 0);
    expect("unit", "=> nobody waits");
    uint64_t first = tr__recorder_wait(r[0], 1, false, "rpc first on \"one\"");
    int64_t between = tr__now_ns(), began = between + 1;
    while (tr__now_ns() <= began) continue;
    assert_true(tr__recorder_wait(r[0], 2, false, "rpc second on \"two\"") != 0);
    assert_true(tr__recorder_wait(r[0], 2, false, "rpc third on \"two\"") != 0);
    char words[128];
    const char *is_awaited = "is what rank 0 waits for: it has not answered rpc";
    snprintf(words, sizeof words, "rank 1 (pid %d) %s first on \"one\" (", (int)getpid(), is_awaited);
    expect("unit", words);
    snprintf(words, sizeof words, "rank 2 (pid %d) %s second on \"two\" (", (int)getpid(), is_awaited);
    expect("unit", words);
    expect_stalls(between, tr__now_ns(), "it has not answered rpc second on");
    tr__recorder_end(r[0], first, TR_OK);
    expect("unit", words);
    for (int i = 0; i < 3; i++) tr__recorder_close(r[i]);
}

/* Over MPI nobody tells whom it waits for, nor that calls differ. */
static void differences_are_pointed_out(void **state)
{
    (void)state;
    tr__recorder *a = open_rank("world", 0, 3, "mpi", NULL), *b = open_rank("world", 1, 3, "mpi", NULL);
    tr__recorder_joined(a);
    tr__recorder_joined(b);
    make_call(a, 1);
    make_call(b, 1);
    enter(a, TR_ALL_REDUCE, 2, 0);
    expect("unit", "is what rank 0 waits for: it has not entered all_reduce #2");
    enter(b, TR_BROADCAST, 2, 0);
    expect("unit", "=> ranks 0 and 1 make different calls: all_reduce #2 (sum of f32[8] at tests/train.c:8), broadcast #2");
    tr__recorder_waits_for(a, (int[]){2}, 1);
    make_call(b, 9);
    expect("unit", "=> the ranks are out of step: rank 0 is in all_reduce #2 (sum of f32[8] at tests/train.c:8), rank 1 has "
        "come to #9");
    expect("unit", "rank 2                        has not joined yet, as far as is known here");
    tr__recorder_peer(a, 2, 4711, "elsewhere");
    tr__recorder_peer(b, 2, 4711, "elsewhere");
    expect("unit", "=> rank 2 (pid 4711 on host elsewhere) is what rank 0 waits for: all_reduce #2");
    tr__recorder_close(a);
    tr__recorder_close(b);
}

/* What a record has of a peer's host ends earlier than what it has of its own. */
static void a_dead_peer_is_known_to_be_of_a_host_with_a_long_name(void **state)
{
    (void)state;
    int fd = -1, how;
    pid_t child = fork();
    if (child == 0) _exit(0);
    assert_true(child > 0 && waitpid(child, &how, 0) == child);
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    tr__record_header *h = open_own(&fd);
    close(fd);
    memset(h->host, 'h', sizeof h->host - 1);
    tr__recorder_peer(r, 1, child, NULL);
    tr__recorder_joined(r);
    char words[64];
    snprintf(words, sizeof words, "rank 1 (pid %d, dead) ", (int)child);
    expect("unit", words);
    munmap(h, sizeof *h);
    tr__recorder_close(r);
}

/* Rank 1 stays out of the call because it is in one of another group. Rank 0 is another process. */
static void the_other_group_is_named(void **state)
{
    (void)state;
    int ready[2], over[2];
    char byte = 0;
    assert_true(pipe(ready) == 0 && pipe(over) == 0);
    pid_t child = fork();
    if (child == 0) {
        tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
        tr__recorder_joined(r);
        enter(r, TR_BARRIER, 5, 0);
        tr__recorder_waits_for(r, (int[]){1}, 1);
        close(over[1]);
        bool told = write(ready[1], &byte, 1) == 1 && read(over[0], &byte, 1) == 0;
        _exit(!told);
    }
    close(over[0]);
    tr__recorder *world = open_rank("world", 1, 2, "native", NULL), *pair = open_rank("pair", 0, 2, "native", NULL);
    tr__recorder_joined(world);
    tr__recorder_joined(pair);
    enter(pair, TR_BARRIER, 3, 0);
    tr__recorder_waits_for(pair, (int[]){1}, 1);
    assert_true(child > 0 && read(ready[0], &byte, 1) == 1);
    char words[256];
    snprintf(words, sizeof words, "=> rank 1 (pid %d) is what rank 0 waits for: it has not entered barrier #5 (at "
        "tests/train.c:8); in group 'pair' it is in barrier #3 (at tests/train.c:8) and waits for rank 1", (int)getpid());
    expect("unit", words);
    tr__recorder_close(world);
    tr__recorder_close(pair);
    close(over[1]);
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    close(ready[0]);
    close(ready[1]);
}

/* Ranks' records in several groups, told as those of processes 1001, 1002, … by their numbers in the job. */
static char *explain_processes(const int *process, int count, bool stalls)
{
    tr__records all;
    char *text;
    read_own(&all, count);
    for (int i = 0; i < count; i++) all.list[i].pid = 1001 + process[i];
    assert_int_equal(stalls ? tr__records_stalls(&all, "unit", 0, tr__now_ns(), &text)
                            : tr__records_explain(&all, "unit", &text), TR_OK);
    tr__records_free(&all);
    return text;
}

static tr__recorder *waiting(const char *group, int number, int world, tr_collective_kind kind, uint64_t sequence, int awaited)
{
    tr__recorder *r = open_rank(group, number, world, "native", NULL);
    tr__recorder_joined(r);
    if (awaited < 0) return r;
    enter(r, kind, sequence, 0);
    tr__recorder_waits_for(r, &awaited, 1);
    return r;
}

/* Process 0 is in a call of group 'a' that process 1 has not come to, which is in one of 'b' that process 0 has not come to. */
static void a_circle_across_groups_is_told_once(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 2, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 2, TR_ALL_REDUCE, 0, -1),
        waiting("b", 0, 2, TR_BARRIER, 0, -1), waiting("b", 1, 2, TR_BARRIER, 9, 0)};
    const char *words = "rank 0 (pid 1001) waits in all_reduce #7 (sum of f32[8] at tests/train.c:8) of group 'a' for rank 1 (pid "
        "1002), which waits in barrier #9 (at tests/train.c:8) of group 'b' for rank 0 (pid 1001): ranks must make their calls in "
        "groups that they share in one order (for ";
    char *text = explain_processes((int[]){0, 1, 0, 1}, 4, false), *at = strstr(text, words);
    if (!at || strncmp(at - 5, "  => ", 5) != 0) fail_msg("nothing of '%s' in:\n%s", words, text);
    assert_null(strstr(at + 1, "=> "));
    assert_true(strstr(text, "=> ") == at - 3); /* nobody is the culprit of one group alone */
    free(text);
    text = explain_processes((int[]){0, 1, 0, 1}, 4, true);
    assert_ptr_equal(strstr(text, words), text);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);

    /* Of ranks that are threads it is not known whose wait is whose. */
    text = explain_processes((int[]){0, 0, 0, 0}, 4, false);
    assert_null(strstr(text, "one order"));
    free(text);
    for (int i = 0; i < 4; i++) tr__recorder_close(r[i]);
}

/* 0 waits in 'a' for 1, which waits there for 2, which waits for 0 in 'b', where its number is 1. Process 3 waits for 0 in
 * 'c' and is beside the circle; in 'd' nobody waits, which is not worth a word then. */
static void a_circle_may_lead_through_several_ranks(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 3, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 3, TR_ALL_REDUCE, 7, 2),
        waiting("a", 2, 3, TR_ALL_REDUCE, 0, -1), waiting("b", 0, 2, TR_BARRIER, 0, -1), waiting("b", 1, 2, TR_BARRIER, 9, 0),
        waiting("c", 0, 2, TR_BARRIER, 0, -1), waiting("c", 1, 2, TR_BARRIER, 3, 0), waiting("d", 0, 2, TR_BARRIER, 0, -1)};
    const char *words = " of group 'a' for rank 2 (pid 1003), which waits as rank 1 in barrier #9 (at tests/train.c:8) of "
        "group 'b' for rank 0 (pid 1001): ranks must make their calls in groups that they share in one order (for ";
    char *text = explain_processes((int[]){0, 1, 2, 0, 2, 0, 3, 0}, 8, false);
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    assert_non_null(strstr(text, "  => rank 0 (pid 1001) waits in all_reduce #7"));
    assert_non_null(strstr(text, "=> rank 0 (pid 1001) is what rank 1 waits for: it has not entered barrier #3"));
    assert_null(strstr(text, "nobody waits"));
    free(text);

    /* Once 2 waits for nobody there is no circle: it is what the others wait for. */
    tr__recorder_waits_for(r[4], NULL, 0);
    text = explain_processes((int[]){0, 1, 2, 0, 2, 0, 3, 0}, 8, false);
    assert_null(strstr(text, "one order"));
    assert_non_null(strstr(text, "=> rank 2 (pid 1003) is what ranks 0 and 1 wait for"));
    free(text);
    for (int i = 0; i < 8; i++) tr__recorder_close(r[i]);
}

/* Process 0 is in a call of group 'a' that process 1 has not come to, which waits for a remote call of process 0. That is at work in
 * it: the threads of an agent's do not wait for the program's. */
static void a_remote_call_is_in_no_circle(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 2, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 2, TR_ALL_REDUCE, 0, -1),
        waiting("a.1-0", 0, 2, TR_BARRIER, 0, -1), waiting("a.1-0", 1, 2, TR_BARRIER, 0, -1)};
    for (int i = 2; i < 4; i++) tr__recorder_is_rpc(r[i]);
    assert_true(tr__recorder_wait(r[3], 0, false, "rpc slow on \"zero\"") != 0);
    char *text = explain_processes((int[]){0, 1, 0, 1}, 4, false);
    assert_null(strstr(text, "one order"));
    const char *words = "=> rank 0 (pid 1001) is what rank 1 waits for: it has not answered rpc slow on \"zero\"";
    if (!strstr(text, words)) fail_msg("nothing of '%s' in:\n%s", words, text);
    free(text);
    for (int i = 0; i < 4; i++) tr__recorder_close(r[i]);
}

/* Of ranks that are threads it is not known whose wait is whose: in 'b' process 0 has two, one of which waits. */
static void threads_are_in_no_circle(void **state)
{
    (void)state;
    tr__recorder *r[] = {waiting("a", 0, 2, TR_ALL_REDUCE, 7, 1), waiting("a", 1, 2, TR_ALL_REDUCE, 0, -1),
        waiting("b", 0, 3, TR_BARRIER, 0, -1), waiting("b", 1, 3, TR_BARRIER, 0, -1), waiting("b", 2, 3, TR_BARRIER, 9, 0)};
    char *text = explain_processes((int[]){0, 1, 0, 1, 1}, 5, false);
    assert_null(strstr(text, "one order"));
    assert_non_null(strstr(text, "=> rank 1 (pid 1002) is what rank 0 waits for: it has not entered all_reduce #7"));
    free(text);
    for (int i = 0; i < 5; i++) tr__recorder_close(r[i]);
}

/* A rank that has died lives on in a record when a child of it holds that. */
static void a_dead_rank_is_told_from_its_child(void **state)
{
    (void)state;
    int over[2], how;
    char byte;
    assert_int_equal(pipe(over), 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000); /* a process is told from another one by when it began, to 10 ms */
        tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
        tr__recorder_joined(r);
        usleep(20000);
        if (fork() == 0) {
            close(over[1]);
            _exit(read(over[0], &byte, 1) != 0);
        }
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, &how, 0) == child);
    char words[64];
    snprintf(words, sizeof words, "rank 0 (pid %d, dead) ", (int)child);
    expect("unit", words);
    close(over[0]);
    close(over[1]);
}

static void jobs_are_found_by_name_and_process(void **state)
{
    (void)state;
    char *text;
    assert_int_equal(tr_job_explain("no-such-job", NULL), TR_INVALID);
    tr__recorder *r = open_rank("world", 0, 2, "native", NULL);
    FAILS(TR_NOT_FOUND, tr_job_explain("no-such-job", &text), "there is no job 'no-such-job'");
    assert_null(text);
    char pid[24];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    expect(pid, "job unit on host");
    snprintf(pid, sizeof pid, "%d", (int)getppid());
    expect(pid, "job unit on host");
    expect(NULL, "job unit on host");
    tr__recorder_close(r);
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static atomic_int reports;
static char reported[1024];

static void note(tr_log_level level, const char *message, void *user)
{
    (void)user;
    if (level == TR_LOG_WARN && atomic_fetch_add(&reports, 1) == 0) snprintf(reported, sizeof reported, "%s", message);
}

/* Rank 2 is late: the others report it, `trireme why` would name it, and then all goes on. */
static void come_late(rank *r)
{
    TR_SCOPE;
    tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = "late",
        .transport = r->arg, .report_ms = 300, .timeout_ms = JOIN_MS);
    OK(tr_status_of(g));
    float x = 1;
    OK(tr_all_reduce(g, &x, 1));
    if (r->number == 2) {
        while (atomic_load(&reports) < 2) usleep(1000);
        char pid[24], *text;
        snprintf(pid, sizeof pid, "%d", (int)getpid());
        OK(tr_job_explain(pid, &text));
        bool named = strstr(text, ") is what ranks 0 and 1 wait for: it has not entered all_reduce #2 (sum of f32[1] at ");
        if (!named) snprintf(r->failure, sizeof r->failure, "%s", text);
        free(text);
        CHECK(named);
    }
    OK(tr_all_reduce(g, &x, 1));
    OK(tr_wait(tr_all_reduce_async(g, &x, 1)));
    OK(tr_leave(g));
}

static void a_late_rank_is_reported(void **state)
{
    (void)state;
    static const char *const transports[] = {"shm", "tcp"};
    tr_set_log(note, NULL, TR_LOG_WARN);
    for (int i = 0; i < 2; i++) {
        atomic_store(&reports, 0);
        run(3, come_late, transports[i]);
        assert_int_equal(atomic_load(&reports), 2);
        assert_non_null(strstr(reported, "group 'late': rank "));
        assert_non_null(strstr(reported, " has waited 0.3 s in all_reduce #2 (sum of f32[1] at "));
        assert_non_null(strstr(reported, " for rank 2 (pid "));
        /* Over TCP a rank may have heard nothing of rank 2 in the first one. */
        assert_non_null(strstr(reported, i == 0 ? "; rank 2 has done all_reduce #1 (" : "; rank 2 "));
    }
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    tr__records records;
    read_own(&records, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_latest_calls_are_kept),
        cmocka_unit_test(calls_under_way_are_not_overwritten),
        cmocka_unit_test(long_paths_keep_their_end),
        cmocka_unit_test(long_waits_keep_their_beginning),
        cmocka_unit_test(nothing_is_asked_of_no_recorder),
        cmocka_unit_test(a_forked_child_leaves_the_record_alone),
        cmocka_unit_test(readers_skip_torn_entries),
        cmocka_unit_test(what_is_no_record_is_left_out),
        cmocka_unit_test(a_failure_leaves_text_and_trace),
        cmocka_unit_test(a_folder_that_cannot_be_made_changes_nothing),
        cmocka_unit_test(who_waits_for_whom),
        cmocka_unit_test(a_stall_is_told_when_it_began_then),
        cmocka_unit_test(transfers_wait_for_their_peer),
        cmocka_unit_test(the_call_that_waits_for_a_culprit_is_named),
        cmocka_unit_test(differences_are_pointed_out),
        cmocka_unit_test(a_dead_peer_is_known_to_be_of_a_host_with_a_long_name),
        cmocka_unit_test(the_other_group_is_named),
        cmocka_unit_test(a_circle_across_groups_is_told_once),
        cmocka_unit_test(a_circle_may_lead_through_several_ranks),
        cmocka_unit_test(a_remote_call_is_in_no_circle),
        cmocka_unit_test(threads_are_in_no_circle),
        cmocka_unit_test(a_dead_rank_is_told_from_its_child),
        cmocka_unit_test(jobs_are_found_by_name_and_process),
        cmocka_unit_test(a_late_rank_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
