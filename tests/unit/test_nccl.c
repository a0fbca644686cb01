/* The nccl backend where there is no NCCL, or no GPU for each rank: every rank gets an error that says so. Where there
 * are two GPUs, they add. */
#include <trireme/comm.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

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

static void join_two(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = tr_store_memory();
    rank ranks[2] = {{.number = 0, .store = store}, {.number = 1, .store = store}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, join, &ranks[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        if (ranks[i].status == TR_OK) assert_true(ranks[i].sum == 3);
        else print_message("rank %d: %s\n", i, ranks[i].message);
        if (ranks[i].status != TR_OK) assert_true(ranks[i].status == TR_UNSUPPORTED || ranks[i].status == TR_DEVICE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(join_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
