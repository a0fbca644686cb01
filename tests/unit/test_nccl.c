/* The nccl backend where no CUDA plug-in is: every rank gets an error that says why and what to do. tests/cuda/nccl has all else. */
#include <trireme/comm.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct rank {
    int number;
    tr_store *store;
    tr_status status;
    char message[512];
} rank;

static void *join(void *arg)
{
    rank *r = arg;
    TR_SCOPE;
    r->status = tr_status_of(tr_join(.store = r->store, .rank = r->number, .world_size = 2, .backend = "nccl", .timeout_ms = 20000));
    snprintf(r->message, sizeof r->message, "%s", tr_error_message());
    return NULL;
}

static void without_a_gpu_the_error_says_what_to_do(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    pthread_t threads[2];
    rank ranks[2];
    if (tr_device_count(TR_CUDA)) skip();
    for (int i = 0; i < 2; i++) {
        ranks[i] = (rank){.number = i, .store = store};
        assert_int_equal(pthread_create(&threads[i], NULL, join, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, TR_DEVICE);
        if (!strstr(ranks[i].message, "nccl: this rank has no GPU; make one usable, or join with .backend = \"native\"") ||
            !strstr(ranks[i].message, "there is no device cuda:0"))
            fail_msg("%s", ranks[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_a_gpu_the_error_says_what_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
