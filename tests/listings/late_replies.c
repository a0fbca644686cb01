/* docs/rpc.md: a worker that sums what several others send, and answers them all when the last one has. */
#include <trireme/trireme.h>

#include <pthread.h>
#include <stdio.h>

enum { WORKERS = 3 };

typedef struct meeting {
    pthread_mutex_t lock;
    double sum;
    int count;
    tr_rpc_reply *replies[WORKERS];
} meeting;

static double add_up(void *state, double x)
{
    meeting *m = state;
    pthread_mutex_lock(&m->lock);
    m->sum += x;
    m->replies[m->count++] = tr_keep(tr_rpc_defer()); /* answered below, maybe by another call's thread */
    for (int i = 0; m->count == WORKERS && i < WORKERS; i++) {
        TR_CHECK(tr_reply_with(m->replies[i], tr_value_f64(m->sum)));
        tr_release(m->replies[i]);
    }
    pthread_mutex_unlock(&m->lock);
    return 0; /* does not count */
}
TR_RPC_WITH_STATE(add_up, F64, RETURNS(F64));

static tr_status run_worker(int rank, void *argument, size_t bytes)
{
    (void)argument;
    (void)bytes;
    TR_SCOPE;
    meeting m = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tr_group *world = tr_join();
    tr_rpc *rpc = tr_rpc_start(world, .threads = 1);
    TR_CHECK(tr_rpc_register(rpc, &add_up_rpc, .state = &m));
    TR_CHECK(tr_barrier(world));
    double sum = tr_future_f64(tr_rpc_sync(rpc, "worker0", "add_up", 1.0 + rank));
    TR_CHECK(tr_rpc_stop(rpc));
    return sum == 6 ? tr_leave(world) : tr_fail(TR_INTERNAL, "rank %d got %g", rank, sum);
}

int main(void)
{
    TR_SPAWN_ENTRY;
    TR_CHECK(tr_spawn(run_worker, WORKERS));
    puts("all got the sum of all");
    return 0;
}
