/* Replicas that should be the same: a flipped bit is found, its rank and tensor named. */
#include "comm_ranks.h"

#include <trireme/trireme.h>

#include <stdlib.h>

/* Which bit of which tensor is flipped on which rank; rank -1: none. */
typedef struct flip {
    int rank, tensor;
    int64_t bit;
    const char *words;
} flip;

static tr_tensor_list *make_tensors(void)
{
    tr_tensor_list *list = tr_list_new();
    tr_tensor *tensors[] = {tr_randn(1, TR_SHAPE(3, 5)), tr_randn(2, TR_SHAPE(700, 1000)), tr_zeros(TR_SHAPE(0)),
                            tr_randn(3, TR_SHAPE(7), .dtype = TR_BF16),
                            tr_transpose(tr_randn(4, TR_SHAPE(4, 6)), 0, 1)};
    const char *names[] = {"first", "large", "empty", "half", "turned"};
    for (int i = 0; i < 5; i++)
        if (tr_list_add(list, names[i], tensors[i]) != TR_OK) return NULL;
    return list;
}

static void check(rank *r)
{
    const flip *f = r->arg;
    TR_SCOPE;
    tr_tensor_list *list = make_tensors();
    CHECK(list);
    OK(tr_check_replicas(r->group, list));
    if (r->number == f->rank)
        ((unsigned char *)tr_data(tr_list_at(list, f->tensor)))[f->bit / 8] ^= (unsigned char)(1 << f->bit % 8);
    CHECK(tr_check_replicas(r->group, list) == TR_MISMATCH);
    SAYS(f->words);
    if (r->number == f->rank)
        ((unsigned char *)tr_data(tr_list_at(list, f->tensor)))[f->bit / 8] ^= (unsigned char)(1 << f->bit % 8);
    OK(tr_check_replicas(r->group, list)); /* the group goes on */
}

static void a_flipped_bit_is_found(void **state)
{
    (void)state;
    const flip flips[] = {
        {2, 0, 0, "replicas differ: rank 2 differs from the other 3 ranks in \"first\" (CRC-32C "},
        {0, 1, 2 * 700000 * 8, "replicas differ: rank 0 differs from the other 3 ranks in \"large\""},
        {3, 3, 7 * 16 - 1, "replicas differ: rank 3 differs from the other 3 ranks in \"half\""},
        {1, 4, 24 * 32 - 1, "replicas differ: rank 1 differs from the other 3 ranks in \"turned\""},
    };
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) run(4, check, &flips[i]);
    run_tcp(3, check, NULL, &(flip){1, 0, 9, "rank 1 differs from the other 2 ranks in \"first\""});
}

static void two_ranks_have_no_majority(void **state)
{
    (void)state;
    run(2, check, &(flip){1, 0, 3, "replicas differ: rank 1 differs from rank 0 in \"first\" (CRC-32C "});
    run(2, check, &(flip){0, 0, 3, "no majority of the 2 ranks tells which is right"});
}

static void many(rank *r)
{
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        OK(tr_list_add(list, name, tr_full(i && r->number > 2 ? 2 : 1, TR_SHAPE(4))));
    }
    CHECK(tr_check_replicas(r->group, list) == TR_MISMATCH);
    SAYS("replicas differ: ranks 3 and 4 differ from the other 3 ranks in \"w1\" and 1 other tensor (CRC-32C ");
    OK(tr_check_replicas(r->group, tr_list_new()));
}

static void several_ranks_and_tensors_are_counted(void **state)
{
    (void)state;
    run(5, many, NULL);
}

/* ---- DDP --------------------------------------------------------------------------------------------------------- */

/* What is flipped on which rank, after which backward, and how the program asks for checks. */
typedef struct damage {
    int rank, after;
    const char *tensor;
    int64_t check_every; /* 0: as it is by default */
    int found;           /* in which backward; 0: in none of them */
    const char *words;
    bool gradient; /* the averaged gradient, before that step is made, instead of the tensor after it */
} damage;

static tr_module *small_net(void)
{
    return tr_sequential(tr_linear(4, 6, .seed = 1), tr_batch_norm1d(6), tr_linear(6, 3, .seed = 2));
}

static void flip_bit(tr_tensor *t)
{
    ((unsigned char *)tr_data(t))[3] ^= 4;
}

/* spoilt: whose gradient is flipped before the step; NULL: none's. */
static tr_status train_step(tr_module *ddp, tr_optimizer *optimizer, int number, int step, const tr_tensor *spoilt)
{
    TR_SCOPE;
    const int32_t classes[] = {0, 1, 2, 1, 0};
    tr_tensor *x = tr_randn((uint64_t)(8 * step + number) + 1, TR_SHAPE(5, 4));
    tr_tensor *y = tr_from(classes, TR_SHAPE(5), .dtype = TR_I32);
    tr_zero_grad(optimizer);
    tr_status status = tr_backward(tr_cross_entropy(tr_forward(ddp, x), y));
    if (spoilt) flip_bit(tr_grad(spoilt));
    return status == TR_OK ? tr_step(optimizer) : status;
}

static void train_with_damage(rank *r)
{
    const damage *d = r->arg;
    TR_SCOPE;
    tr_module *net = small_net();
    tr_module *ddp = d->check_every ? tr_ddp(net, r->group, .check_every = d->check_every) : tr_ddp(net, r->group);
    OK(tr_status_of(ddp));
    tr_optimizer *optimizer = tr_sgd(tr_parameters(net), .lr = 0.01);
    for (int step = 1; step <= 12; step++) {
        /* Forwards in training mode that one rank alone makes, and more of them than the others, are no difference. */
        if (r->number == 1) OK(tr_status_of(tr_forward(ddp, tr_randn((uint64_t)step, TR_SHAPE(3, 4)))));
        tr_tensor *odd = step == d->after && r->number == d->rank ? tr_list_find(tr_state_dict(net), d->tensor) : NULL;
        tr_status status = train_step(ddp, optimizer, r->number, step, d->gradient ? odd : NULL);
        if (step == d->found) {
            CHECK(status == TR_MISMATCH);
            SAYS(d->words);
            OK(tr_barrier(r->group)); /* the group goes on */
            return;
        }
        OK(status);
        if (odd && !d->gradient) flip_bit(odd);
    }
    CHECK(!d->found);
}

static void ddp_compares_replicas_on_the_way(void **state)
{
    (void)state;
    const damage damages[] = {
        {-1, 0, NULL, 3, 0, NULL, false}, /* running statistics, of each rank's own samples, are no difference */
        {2, 4, "0.weight", 3, 6,
         "ddp: replicas were alike in backward 3 and differ in backward 6: rank 2 differs from the other 3 "
         "ranks in \"0.weight\" (",
         false},
        {0, 1, "2.bias", 2, 2, "were alike in backward 0 and differ in backward 2: rank 0 differs from the other 3 ranks in \"2.bias\"",
         false},
        {3, 3, "1.weight", 0, 0, NULL, false},       /* not within a hundred, */
        {2, 1, "1.weight", 0, 2, "were alike in backward 0 and differ in backward 2: rank 2", false}, /* but after the first step */
        {3, 5, "1.running_mean", 1, 0, NULL, false}, /* rank 0's become everybody's */
        {1, 4, "2.weight", 3, 6, "differ in backward 6: rank 1 differs from the other 3 ranks in \"2.weight\"", true},
    };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) run(4, train_with_damage, &damages[i]);
    run_tcp(3, train_with_damage, NULL, &(damage){1, 7, "2.weight", 4, 8, "rank 1 differs from the other 2 ranks in \"2.weight\"", false});
}

static void the_environment_asks_for_every_backward(void **state)
{
    (void)state;
    setenv("TRIREME_CHECK", "replicas", 1);
    run(3, train_with_damage,
        &(damage){2, 4, "0.weight", 0, 5, "were alike in backward 4 and differ in backward 5: rank 2", false});
    unsetenv("TRIREME_CHECK");
}

static void wrap_otherwise(rank *r)
{
    TR_SCOPE;
    CHECK(tr_status_of(tr_ddp(small_net(), r->group, .check_every = 5 + r->number / 2)) == TR_MISMATCH);
    SAYS("check_every is 5 on ranks 0 and 1, 6 on rank 2");
    CHECK(tr_status_of(tr_ddp(small_net(), r->group, .check_every = -2)) == TR_INVALID);
}

static void ranks_agree_on_how_often(void **state)
{
    (void)state;
    run(3, wrap_otherwise, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(two_ranks_have_no_majority),
        cmocka_unit_test(several_ranks_and_tensors_are_counted),
        cmocka_unit_test(ddp_compares_replicas_on_the_way),
        cmocka_unit_test(the_environment_asks_for_every_backward),
        cmocka_unit_test(ranks_agree_on_how_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
