/*
 * The flight recorder: its ring, readers that come at any moment, records that are no records, the files of a failure. What is
 * concluded about ranks that wait: test_explain.c.
 */
#include "base/clock.h"
#include "comm/record/record.h"
#include "comm_ranks.h"
#include "recorders.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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
    while (tr__now_ns() < end || !seen) {
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
    tr__recorder_close(w.recorder);
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

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static atomic_int reports, named; /* in call 2, and those that name rank 2 */
static char reported[1024];

static void note(tr_log_level level, const char *message, void *user)
{
    (void)user;
    if (level != TR_LOG_WARN || !strstr(message, " in all_reduce #2 (")) return;
    bool names = strstr(message, " for rank 2 (pid ");
    if (names && atomic_fetch_add(&named, 1) == 0) snprintf(reported, sizeof reported, "%s", message);
    atomic_fetch_add(&reports, 1);
}

static bool explains_itself(char failure[2048])
{
    char pid[24], *text;
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (tr_job_explain(pid, &text) != TR_OK) {
        snprintf(failure, 2048, "%s", tr_error_message());
        return false;
    }
    bool said = strstr(text, ") is what ranks 0 and 1 wait for: it has not entered all_reduce #2 (sum of f32[1] at ");
    snprintf(failure, 2048, "%s", said ? "" : text);
    free(text);
    return said;
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
        for (int ms = 0; ms < JOIN_MS && !explains_itself(r->failure); ms++) usleep(1000);
        if (r->failure[0]) return;
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
        atomic_store(&named, 0);
        run(3, come_late, transports[i]);
        assert_int_equal(atomic_load(&reports), 2);
        assert_true(atomic_load(&named) > 0); /* by who came last, at least */
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
        cmocka_unit_test(a_late_rank_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
