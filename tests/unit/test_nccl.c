/* The nccl backend where there are two GPUs: they add. Where NCCL cannot be used every rank gets an error that says why
 * and what to do: tried with doubles of libcudart and libnccl, which stand for machines of each kind. */
#include "files.h"

#include <trireme/comm.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Two ranks --------------------------------------------------------------------------------------------------- */

typedef struct rank {
    int number;
    tr_store *store;
    tr_status status;
    char message[512];
    float sum;
} rank;

static void *join(void *arg)
{
    rank *r = arg;
    TR_SCOPE;
    tr_group *g = tr_join(.store = r->store, .rank = r->number, .world_size = 2, .backend = "nccl", .timeout_ms = 20000);
    r->status = tr_status_of(g);
    r->sum = (float)(r->number + 1);
    if (r->status == TR_OK) r->status = tr_all_reduce(g, &r->sum, 1);
    if (r->status == TR_OK) r->status = tr_leave(g);
    if (r->status != TR_OK) snprintf(r->message, sizeof r->message, "%s", tr_error_message());
    return NULL;
}

static void join_two(rank ranks[2])
{
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ranks[i] = (rank){.number = i, .store = store};
        if (pthread_create(&threads[i], NULL, join, &ranks[i]) != 0) abort();
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void two_gpus_add(void **state)
{
    (void)state;
    rank ranks[2];
    join_two(ranks);
    for (int i = 0; i < 2; i++) {
        if (ranks[i].status == TR_OK) assert_true(ranks[i].sum == 3);
        else print_message("rank %d: %s\n", i, ranks[i].message);
        if (ranks[i].status != TR_OK) assert_true(ranks[i].status == TR_UNSUPPORTED || ranks[i].status == TR_DEVICE);
    }
}

/* ---- Machines where NCCL cannot be used -------------------------------------------------------------------------- */

/* A folder with a libcudart, whatever this build wants it called, and a libnccl; NULL: a file that is no library. */
static const char *libraries(const char *folder, const char *cudart, const char *nccl)
{
    static const char *const names[] = {"libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13", "libnccl.so.2"};
    char name[64];
    snprintf(name, sizeof name, "%s/none", folder);
    const char *none = files_write(name, "", 0);
    for (int i = 0; i < 4; i++) {
        const char *library = i < 3 ? cudart : nccl;
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        assert_int_equal(symlink(library ? library : none, files_path(name)), 0);
    }
    return files_path(folder);
}

/* What rank 1 of two is told on such a machine; libraries stay open, so each machine is a process of its own. */
static void says(const char *folder, const char *cudart, const char *nccl, const char *machine, const char *words)
{
    char self[512], command[2048], message[1024];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = 0;
    snprintf(command, sizeof command, "LD_LIBRARY_PATH='%s' DOUBLE_CUDA='%s' exec '%s' join",
        libraries(folder, cudart, nccl), machine, self);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    message[fread(message, 1, sizeof message - 1, child)] = 0;
    assert_int_equal(pclose(child), 0);

    if (strstr(message, "built without it")) words = "build it where the CUDA toolkit and nccl.h are";
    if (!strstr(message, words)) fail_msg("%s: \"%s\" does not say \"%s\"", folder, message, words);
    if (!strstr(message, "nccl: ") || !strstr(message, ", or join with .backend = \"native\", which needs no GPU"))
        fail_msg("%s: \"%s\" does not say what to do", folder, message);
}

/* The machine: cudaGetDeviceCount()'s error and count, the driver's and the runtime's version. */
static void errors_say_why_and_what_to_do(void **state)
{
    (void)state;
    says("no-cudart", NULL, DOUBLE_NCCL, "", "cannot be opened");
    says("no-nccl", DOUBLE_CUDART, NULL, "", "libnccl.so.2 cannot be opened");
    says("old-nccl", DOUBLE_CUDART, DOUBLE_CUDART, "", "libnccl.so.2 has no ncclGetUniqueId(); install a newer one");
    says("no-driver", DOUBLE_CUDART, DOUBLE_NCCL, "35 0 0 13000", "there is no NVIDIA driver here; install it");
    says("old-driver", DOUBLE_CUDART, DOUBLE_NCCL, "35 0 11040 13000",
        "the NVIDIA driver is too old: it knows CUDA 11.4 at most, and ");
    says("no-gpu", DOUBLE_CUDART, DOUBLE_NCCL, "100 0 13000 13000", "no GPU to this process; see what nvidia-smi");
    says("none-counted", DOUBLE_CUDART, DOUBLE_NCCL, "0 0 13000 13000", "shows no GPU to this process");
    says("sick", DOUBLE_CUDART, DOUBLE_NCCL, "802 0 13000 13000", "the GPUs here cannot be used: error 802; see what");
    says("one-gpu", DOUBLE_CUDART, DOUBLE_NCCL, "0 1 13000 13000", "which has 1; start no more ranks there");
}

/* "join": what rank 1 gets to hear. */
int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "join") == 0) {
        rank ranks[2];
        join_two(ranks);
        printf("%s\n", ranks[1].message);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_gpus_add),
        cmocka_unit_test(errors_say_why_and_what_to_do),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
