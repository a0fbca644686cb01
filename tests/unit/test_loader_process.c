/* Loaders whose workers are processes: the same batches as of threads, errors, deaths, and nothing left behind. */
#include "files.h"

#include "data/loader.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <trireme/trireme.h>

static bool here; /* in the test's own process */

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* ---- Datasets ---------------------------------------------------------------------------------------------------- */

typedef struct plan {
    int64_t count;
    int64_t fail_at, kill_at, exit_at, hang_at; /* -1: at none */
    pid_t leaves_behind;               /* where it is killed, a process that lives as long as this one; 0: none */
    bool only_here;                    /* other processes cannot make it */
    bool grows;                        /* they find a sample more */
} plan;

static tr_status get(const tr_sample_call *call, tr_sample *out)
{
    const plan *p = call->user;
    if (call->index == p->fail_at) return tr_fail(TR_IO, "cannot read number %d", (int)call->index);
    if (call->index == p->kill_at && !here && p->leaves_behind && fork() == 0) {
        while (kill(p->leaves_behind, 0) == 0) usleep(10000);
        _exit(0);
    }
    if (call->index == p->kill_at && !here) kill(getpid(), SIGKILL);
    if (call->index == p->exit_at && !here) _exit(7);
    while (call->index == p->hang_at && !here) pause();
    tr_tensor *noise = tr_rand(call->seed, TR_SHAPE(1));
    out->x = tr_cat((tr_tensor *[]){tr_full((double)call->index, TR_SHAPE(1)), noise}, 2, 0);
    out->y = tr_scalar(here ? -1 : getpid(), TR_I64);
    return TR_OK;
}

static tr_dataset *make(const void *argument, size_t bytes)
{
    plan *p = malloc(sizeof *p);
    if (!p || bytes != sizeof *p) abort();
    memcpy(p, argument, sizeof *p);
    p->count += p->grows && !here;
    tr_dataset *set = tr_dataset_new(p->count, get, .user = p, .release = free, .name = "numbers");
    if (tr_status_of(set) != TR_OK) free(p); /* it was not taken */
    if (tr_status_of(set) != TR_OK || !p->only_here || here) return set;
    return tr_dataset_slice(set, 5, 4);
}

static tr_dataset *numbers(plan p)
{
    return tr_dataset_from(make, &p, sizeof p);
}

static const plan sound = {.count = 50, .fail_at = -1, .kill_at = -1, .exit_at = -1, .hang_at = -1};

static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

static void test_the_same_batches_as_of_threads(void **state)
{
    (void)state;
    for (int workers = 1; workers < 4; workers++) {
        TR_SCOPE;
        tr_dataset *set = tr_dataset_slice(tr_dataset_slice(numbers(sound), 3, 49), 1, 46);
        tr_loader *threads = tr_loader_new(set, .batch = 7, .shuffle = true, .seed = 4, .workers = 1);
        tr_loader *processes = tr_loader_new(set, .batch = 7, .shuffle = true, .seed = 4, .workers = workers,
            .processes = true);
        for (int i = 0; i < 2 * 8; i++) {
            tr_batch a, b;
            tr_status status = tr_loader_next(threads, &a);
            if (tr_loader_next(processes, &b) != status) fail_msg("%s", tr_error_message());
            if (status == TR_END) continue;
            TR_CHECK(status);
            assert_int_equal(a.count, b.count);
            assert_memory_equal(a.indices, b.indices, (size_t)a.count * sizeof *a.indices);
            assert_memory_equal(tr_data(a.x), tr_data(b.x), (size_t)a.count * 2 * sizeof(float));
            assert_true(((int64_t *)tr_data(a.y))[0] == -1 && ((int64_t *)tr_data(b.y))[0] > 0);
        }
    }
    assert_no_child();
}

static void test_files_are_read_there(void **state)
{
    (void)state;
    TR_SCOPE;
    unsigned char images[16 + 20 * 4] = {0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 2, 0, 0, 0, 2};
    unsigned char labels[8 + 20] = {0, 0, 8, 1, 0, 0, 0, 20};
    for (int i = 0; i < 80; i++) images[16 + i] = (unsigned char)(3 * i);
    for (int i = 0; i < 20; i++) labels[8 + i] = (unsigned char)(i % 10);
    files_write_gz("t10k-images-idx3-ubyte.gz", images, sizeof images);
    files_write("t10k-labels-idx1-ubyte", labels, sizeof labels);
    tr_loader *loader = tr_loader_new(tr_dataset_slice(tr_mnist(files_path("")), 4, 20), .batch = 5, .workers = 2,
        .processes = true);
    tr_batch b;
    int64_t seen = 0;
    tr_status status;
    while ((status = tr_loader_next(loader, &b)) == TR_OK)
        for (int64_t i = 0; i < b.count; i++, seen++) {
            assert_int_equal(((int64_t *)tr_data(b.y))[i], (seen + 4) % 10);
            assert_true(((float *)tr_data(b.x))[4 * i + 3] == (float)images[16 + 4 * (seen + 4) + 3] / 255.0f);
        }
    if (status != TR_END) fail_msg("%s", tr_error_message());
    assert_int_equal(seen, 16);
}

/* As long as the first sample's number: the memory between the processes has to grow. */
static tr_status grow(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    if (user || count != 2) return tr_fail(TR_INVALID, "%d samples", (int)count);
    float number = ((float *)tr_data(samples[0].x))[0];
    batch->x = tr_full(number, TR_SHAPE(1 + 3000 * (int64_t)number));
    return TR_OK;
}

static void test_batches_of_any_size(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_loader *loader = tr_loader_new(numbers(sound), .batch = 2, .workers = 1, .processes = true, .collate = grow);
    tr_batch b;
    for (int64_t i = 0; i < 50; i += 2) {
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(tr_numel(b.x), 1 + 3000 * i);
        assert_true(((float *)tr_data(b.x))[3000 * i] == (float)i);
        assert_null(b.y);
    }
    assert_int_equal(tr_loader_next(loader, &b), TR_END);
}

/* Sample i: x: i, more[1]: three bytes of i, more[5]: the process that made it. Every tenth is bad. */
static tr_status get_more(const tr_sample_call *call, tr_sample *out)
{
    if (call->index % 10 == 9) return tr_fail(TR_FORMAT, "nine");
    out->x = tr_scalar((double)call->index, TR_F32);
    out->more[1] = tr_full((double)call->index, TR_SHAPE(3), .dtype = TR_U8);
    out->more[5] = tr_scalar(getpid(), TR_I64);
    return TR_OK;
}

static tr_dataset *make_more(const void *argument, size_t bytes)
{
    (void)argument;
    return bytes ? NULL : tr_dataset_new(40, get_more, .name = "more");
}

static tr_dataset *make_rows(const void *argument, size_t bytes)
{
    (void)argument, (void)bytes;
    tr_tensor *x = tr_arange(40, TR_F32, tr_cpu(0)), *bytes3 = tr_empty(TR_SHAPE(40, 3), .dtype = TR_U8);
    for (int i = 0; i < 120; i++) ((uint8_t *)tr_data(bytes3))[i] = (uint8_t)(i / 3);
    return tr_dataset_tensors(x, NULL, .more = {NULL, bytes3, NULL, NULL, NULL, tr_full(getpid(), TR_SHAPE(40), .dtype = TR_I64)});
}

/* Makes what a loader without it makes. */
static tr_status collate_more(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    tr_tensor *bytes[8], *pids[8];
    if (user || count > 8) return tr_fail(TR_INVALID, "%d samples", (int)count);
    batch->x = tr_empty(TR_SHAPE(count));
    for (int64_t i = 0; i < count; i++) {
        ((float *)tr_data(batch->x))[i] = (float)tr_item(samples[i].x);
        bytes[i] = tr_reshape(samples[i].more[1], TR_SHAPE(1, 3));
        pids[i] = tr_reshape(samples[i].more[5], TR_SHAPE(1));
    }
    batch->more[1] = tr_cat(bytes, (int)count, 0);
    batch->more[5] = tr_cat(pids, (int)count, 0);
    return TR_OK;
}

/* Rows in place, samples of a function, and a collate; bad samples, whose record comes behind the batch. */
static void test_batches_of_more_than_two_tensors(void **state)
{
    (void)state;
    for (int run = 0; run < 3; run++) {
        TR_SCOPE;
        tr_dataset *set = tr_dataset_from(run ? make_more : make_rows, NULL, 0);
        tr_loader *loader = tr_loader_new(set, .batch = 8, .workers = 2, .processes = true, .on_bad = TR_SKIP,
            .collate = run == 2 ? collate_more : NULL);
        tr_batch b;
        tr_status status;
        int64_t batches = 0;
        for (; (status = tr_loader_next(loader, &b)) == TR_OK; batches++) {
            assert_true(!b.y && !b.more[0] && !b.more[2] && b.more[1] && b.more[5]);
            for (int64_t i = 0; i < b.count; i++) {
                assert_true(((float *)tr_data(b.x))[i] == (float)b.indices[i]);
                for (int64_t k = 0; k < 3; k++) assert_int_equal(((uint8_t *)tr_data(b.more[1]))[3 * i + k], b.indices[i]);
                assert_int_not_equal(((int64_t *)tr_data(b.more[5]))[i], getpid());
            }
        }
        if (status != TR_END) fail_msg("%s", tr_error_message());
        assert_int_equal(batches, 5);
        assert_in_range(tr_loader_skipped(loader), run ? 4 : 0, run ? 40 : 0);
    }
    assert_no_child();
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

static void test_errors_name_the_sample(void **state)
{
    (void)state;
    TR_SCOPE;
    plan p = sound;
    p.fail_at = 13;
    tr_loader *loader = tr_loader_new(numbers(p), .batch = 10, .workers = 2, .processes = true);
    tr_batch b;
    TR_CHECK(tr_loader_next(loader, &b));
    assert_failed(tr_loader_next(loader, &b), TR_IO, "loader: sample 13 of numbers: cannot read number 13");
    TR_CHECK(tr_loader_next(loader, &b));
    assert_int_equal(b.indices[0], 20);
}

static void test_a_process_that_dies_is_told(void **state)
{
    (void)state;
    TR_SCOPE;
    plan p = sound;
    p.kill_at = 13;
    p.exit_at = 32;
    for (int workers = 1; workers < 3; workers++) {
        tr_loader *loader = tr_loader_new(numbers(p), .batch = 10, .workers = workers, .processes = true);
        tr_batch b;
        TR_CHECK(tr_loader_next(loader, &b));
        assert_failed(tr_loader_next(loader, &b), TR_CHILD,
            "was killed by signal 9 (Killed) while it made samples 10, 11, 12, 13, 14, 15, 16, 17, … (10 of them) of numbers");
        TR_CHECK(tr_loader_next(loader, &b)); /* by another process */
        assert_int_equal(b.indices[0], 20);
        assert_failed(tr_loader_next(loader, &b), TR_CHILD, "exited with 7 while it made samples 30, 31, 32,");
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(b.indices[9], 49);
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
    }
}

/* What it has forked has its end of the socket, too. */
static void test_a_process_that_dies_and_leaves_another_one_is_told(void **state)
{
    (void)state;
    TR_SCOPE;
    plan p = sound;
    p.kill_at = 13;
    p.leaves_behind = getpid();
    tr_loader *loader = tr_loader_new(numbers(p), .batch = 10, .workers = 1, .processes = true);
    tr_batch b;
    TR_CHECK(tr_loader_next(loader, &b));
    assert_failed(tr_loader_next(loader, &b), TR_CHILD, "was killed by signal 9 (Killed) while it made samples 10, 11, 12, 13,");
    TR_CHECK(tr_loader_next(loader, &b));
    assert_int_equal(b.indices[0], 20);
}

/* Sample 5 is of 64 MiB. */
static tr_status one_is_large(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    if (user || count != 1) return tr_fail(TR_INVALID, "%d samples", (int)count);
    float number = ((float *)tr_data(samples[0].x))[0];
    batch->x = tr_full(number, TR_SHAPE(number == 5 ? 16 << 20 : 1));
    return TR_OK;
}

/* Lets this process map only so much more. */
static void limit_memory(struct rlimit *before)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, before), 0);
    struct rlimit less = {(rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (32 << 20), before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
}

static void test_memory_that_cannot_be_mapped_is_an_error(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_loader *loader = tr_loader_new(numbers(sound), .batch = 1, .workers = 1, .prefetch = 1, .processes = true,
        .collate = one_is_large);
    struct rlimit before;
    tr_batch b;
    TR_CHECK(tr_loader_next(loader, &b)); /* the process has been started, with no limit of its own */
    limit_memory(&before);
    for (int i = 1; i < 5; i++) TR_CHECK(tr_loader_next(loader, &b));
    assert_failed(tr_loader_next(loader, &b), TR_NO_MEMORY, "cannot map 6");
    assert_failed(tr_loader_next(loader, &b), TR_NO_MEMORY, "cannot map 6"); /* it is as large as it was */
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    (void)!tr_loader_next(loader, &b); /* perhaps it was begun under the limit */
    TR_CHECK(tr_loader_next(loader, &b));
    assert_int_equal(b.indices[0], 8);
    assert_true(((float *)tr_data(b.x))[0] == 8);
}

static bool wants_to_stop(void *user)
{
    (void)user;
    return true;
}

/* Once it is known that one hangs, which takes five seconds, another epoch is not kept waiting by it. */
static void test_another_epoch_ends_a_process_that_hangs(void **state)
{
    (void)state;
    TR_SCOPE;
    plan p = sound;
    p.hang_at = 13;
    tr_loader *loader = tr_loader_new(numbers(p), .batch = 10, .workers = 2, .prefetch = 1, .processes = true);
    tr_batch b;
    TR_CHECK(tr_loader_next(loader, &b));
    tr__loader_stop_when(loader, wants_to_stop, NULL);
    assert_failed(tr_loader_next(loader, &b), TR_CANCELLED, "one of them hangs");
    TR_CHECK(tr_loader_set_epoch(loader, 1));
    TR_CHECK(tr_loader_next(loader, &b));
    assert_int_equal(b.indices[0], 0);
    assert_true(((float *)tr_data(b.x))[2 * 9] == 9);
    tr__loader_stop_when(loader, NULL, NULL);
}

static void test_a_dataset_that_cannot_be_made_there(void **state)
{
    (void)state;
    TR_SCOPE;
    plan p = sound;
    p.only_here = true;
    tr_loader *loader = tr_loader_new(numbers(p), .batch = 1, .workers = 1, .processes = true);
    tr_batch b;
    assert_failed(tr_loader_next(loader, &b), TR_INVALID,
        "to make sample 0: dataset_slice: no samples [5, 4): numbers");
}

/* As of a folder that has got a file, where the numbers behind that are other samples'. */
static void test_a_dataset_that_has_grown_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    plan p = sound;
    p.grows = true;
    tr_loader *loader = tr_loader_new(tr_dataset_slice(numbers(p), 3, 9), .batch = 1, .workers = 1, .processes = true);
    tr_batch b;
    assert_failed(tr_loader_next(loader, &b), TR_INVALID, "it has 51 samples of numbers, and the program has 50");
}

static void test_what_processes_cannot_do(void **state)
{
    (void)state;
    TR_SCOPE;
    int user = 0;
    tr_dataset *set = tr_dataset_tensors(tr_zeros(TR_SHAPE(4)), NULL);
    assert_failed(tr_status_of(tr_loader_new(set, .workers = 1, .processes = true)), TR_INVALID,
        "another process cannot make tensors: ");
    assert_failed(tr_status_of(tr_loader_new(numbers(sound), .processes = true)), TR_INVALID, ".workers, 1 and more");
    assert_failed(tr_status_of(tr_loader_new(numbers(sound), .workers = 1, .processes = true, .collate = grow,
        .user = &user)), TR_INVALID, ".user");
    assert_failed(tr_status_of(tr_dataset_from(NULL, NULL, 0)), TR_INVALID, "NULL");
    plan p = sound;
    p.count = -1;
    assert_failed(tr_status_of(numbers(p)), TR_INVALID, "-1");
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

static tr_status get_slowly(const tr_sample_call *call, tr_sample *out)
{
    if (call->index >= 2) sleep(1000);
    out->x = tr_scalar(getpid(), TR_I64);
    return TR_OK;
}

/* Which comes from the terminal or the launcher to all of a process group: the program may finish its step and save. */
static void test_a_request_to_end_is_not_for_the_workers(void **state)
{
    (void)state;
    TR_SCOPE;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    tr_loader *loader = tr_loader_new(numbers(sound), .batch = 5, .workers = 2, .processes = true);
    tr_batch b;
    for (int i = 0; i < 10; i++) {
        if (tr_loader_next(loader, &b) != TR_OK) fail_msg("%s", tr_error_message());
        kill((pid_t)((int64_t *)tr_data(b.y))[0], signals[i % 6]);
    }
    assert_int_equal(tr_loader_next(loader, &b), TR_END);
}

static tr_dataset *make_slow(const void *argument, size_t bytes)
{
    (void)argument, (void)bytes;
    return tr_dataset_new(100, get_slowly);
}

static void test_loaders_end_in_mid_epoch(void **state)
{
    (void)state;
    for (int batches = 0; batches < 5; batches++) {
        TR_SCOPE;
        tr_loader *loader = tr_loader_new(numbers(sound), .batch = 7, .workers = 2, .processes = true);
        tr_batch b;
        for (int i = 0; i < batches; i++) TR_CHECK(tr_loader_next(loader, &b));
        if (batches == 3) TR_CHECK(tr_loader_set_epoch(loader, 0));
    }
    assert_no_child();
    {
        TR_SCOPE; /* a process that is at a sample for long is killed */
        tr_batch b;
        TR_CHECK(tr_loader_next(tr_loader_new(tr_dataset_from(make_slow, NULL, 0), .batch = 2, .workers = 1,
            .processes = true), &b));
    }
    assert_no_child();
}

/* In a process of its own: has a worker busy, notes which process that is, and dies. */
static tr_status die_with_a_worker(int rank, void *argument, size_t bytes)
{
    (void)rank, (void)bytes;
    tr_batch b;
    TR_CHECK(tr_loader_next(tr_loader_new(tr_dataset_from(make_slow, NULL, 0), .batch = 2, .workers = 1,
        .processes = true), &b));
    FILE *file = fopen(argument, "w");
    if (!file || fprintf(file, "%d", (int)tr_item(tr_slice(b.x, 0, 0, 1))) < 0 || fclose(file) != 0) abort();
    kill(getpid(), SIGKILL);
    return TR_OK;
}

static bool is_gone(int pid)
{
    char path[32], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return true;
    int got = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return got != 1 || state == 'Z' || state == 'X';
}

static void test_workers_die_with_the_program(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *path = files_path("worker");
    assert_failed(tr_spawn(die_with_a_worker, 1, .argument = path, .bytes = strlen(path) + 1), TR_CHILD, "signal 9");
    int pid = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    assert_true(pid > 1);
    while (!is_gone(pid)) usleep(1000); /* CTest's time limit ends it */
}

int main(void)
{
    TR_SPAWN_ENTRY;
    here = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_batches_as_of_threads),
        cmocka_unit_test(test_files_are_read_there),
        cmocka_unit_test(test_batches_of_any_size),
        cmocka_unit_test(test_batches_of_more_than_two_tensors),
        cmocka_unit_test(test_errors_name_the_sample),
        cmocka_unit_test(test_a_process_that_dies_is_told),
        cmocka_unit_test(test_a_process_that_dies_and_leaves_another_one_is_told),
        cmocka_unit_test(test_memory_that_cannot_be_mapped_is_an_error),
        cmocka_unit_test(test_another_epoch_ends_a_process_that_hangs),
        cmocka_unit_test(test_a_dataset_that_cannot_be_made_there),
        cmocka_unit_test(test_a_dataset_that_has_grown_is_refused),
        cmocka_unit_test(test_what_processes_cannot_do),
        cmocka_unit_test(test_loaders_end_in_mid_epoch),
        cmocka_unit_test(test_a_request_to_end_is_not_for_the_workers),
        cmocka_unit_test(test_workers_die_with_the_program),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
