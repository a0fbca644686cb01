/* Two ranks in one process, each a thread: they meet in a store, train with DDP, and end with the same weights as one rank
 * that saw both halves of the batch. */
#include <trireme/trireme.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>

enum { RANKS = 2, ROWS = 8, STEPS = 5 };

typedef struct rank {
    tr_store *store;
    int rank, world_size;
    float weight[6];
} rank;

static void *train(void *arg)
{
    rank *r = arg;
    tr_group *group = tr_join(.store = r->store, .rank = r->rank, .world_size = r->world_size);
    tr_module *net = tr_linear(3, 2, .seed = (uint64_t)(7 + r->rank)); /* rank 0's weights are the ones that count */
    tr_module *ddp = tr_ddp(net, group);
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1, .momentum = 0.9);
    tr_tensor *all = tr_randn(9, TR_SHAPE(ROWS, 3));
    int64_t mine = ROWS / r->world_size;
    tr_tensor *x = tr_slice(all, 0, r->rank * mine, (r->rank + 1) * mine);
    for (int step = 0; step < STEPS; step++) {
        TR_SCOPE;
        tr_tensor *y = tr_forward(ddp, x);
        tr_zero_grad(opt);
        TR_CHECK(tr_backward(tr_mean(tr_mul(y, y))));
        TR_CHECK(tr_step(opt));
    }
    TR_CHECK(tr_copy_out(tr_list_find(tr_parameters(net), "weight"), r->weight, sizeof r->weight));
    TR_CHECK(tr_leave(group));
    return NULL;
}

int main(void)
{
    rank ranks[RANKS], alone = {tr_store_memory(), 0, 1, {0}};
    tr_store *store = tr_store_memory();
    pthread_t threads[RANKS];
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (rank){store, i, RANKS, {0}};
        if (pthread_create(&threads[i], NULL, train, &ranks[i]) != 0) return 1;
    }
    for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
    train(&alone);

    float worst = 0;
    for (int i = 0; i < 6; i++) {
        if (ranks[0].weight[i] != ranks[1].weight[i]) return 1; /* to the bit */
        worst = fmaxf(worst, fabsf(ranks[0].weight[i] - alone.weight[i]));
    }
    printf("two ranks against one: %g\n", (double)worst);
    return worst < 1e-6f ? 0 : 1;
}
