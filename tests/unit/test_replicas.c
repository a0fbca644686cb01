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
    tr_tensor_list *list = tr_list();
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
        {2, 0, 0, "replicas differ: rank 2 has not the \"first\" of the other 3 ranks (CRC-32C "},
        {0, 1, 2 * 700000 * 8, "replicas differ: rank 0 has not the \"large\" of the other 3 ranks"},
        {3, 3, 7 * 16 - 1, "replicas differ: rank 3 has not the \"half\" of the other 3 ranks"},
        {1, 4, 24 * 32 - 1, "replicas differ: rank 1 has not the \"turned\" of the other 3 ranks"},
    };
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) run(4, check, &flips[i]);
    run_tcp(3, check, NULL, &(flip){1, 0, 9, "rank 1 has not the \"first\" of the other 2 ranks"});
}

static void two_ranks_have_no_majority(void **state)
{
    (void)state;
    run(2, check, &(flip){1, 0, 3, "replicas differ: rank 1 has another \"first\" than rank 0 (CRC-32C "});
    run(2, check, &(flip){0, 0, 3, "no majority of the 2 ranks tells which is right"});
}

static void many(rank *r)
{
    TR_SCOPE;
    tr_tensor_list *list = tr_list();
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        OK(tr_list_add(list, name, tr_full(i && r->number > 2 ? 2 : 1, TR_SHAPE(4))));
    }
    CHECK(tr_check_replicas(r->group, list) == TR_MISMATCH);
    SAYS("replicas differ: ranks 3 and 4 have not the \"w1\" and 1 more tensors of the other 3 ranks");
    OK(tr_check_replicas(r->group, tr_list()));
}

static void several_ranks_and_tensors_are_counted(void **state)
{
    (void)state;
    run(5, many, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(two_ranks_have_no_majority),
        cmocka_unit_test(several_ranks_and_tensors_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
