/*
 * Do ranks still hold the same? Each sums up its tensors (CRC-32C, one pass over memory), one all_gather compares the
 * sums, and where they differ the majority tells which ranks are odd.
 */
#include "base/object.h"
#include "comm/record.h"
#include "tensor/checksum.h"

#include <trireme/parallel.h>

#include <inttypes.h>
#include <stdlib.h>

/* The ranks' sums of one tensor: sums[rank * count]. */
static bool differ(const uint32_t *sums, int world_size, int count)
{
    for (int rank = 1; rank < world_size; rank++)
        if (sums[(size_t)rank * (size_t)count] != sums[0]) return true;
    return false;
}

/* How many ranks hold what a rank holds. */
static int holders(const uint32_t *sums, int world_size, int count, int of)
{
    int holders = 0;
    for (int rank = 0; rank < world_size; rank++)
        holders += sums[(size_t)rank * (size_t)count] == sums[(size_t)of * (size_t)count];
    return holders;
}

/* Says which ranks are odd: those that do not hold what more than half of the ranks hold. */
static tr_status say_difference(const tr_tensor_list *list, const uint32_t *sums, int world_size, int *ranks)
{
    int count = tr_list_count(list), first = -1, others = -1;
    for (int i = 0; i < count; i++) {
        if (!differ(sums + i, world_size, count)) continue;
        if (first < 0) first = i;
        others++;
    }
    if (first < 0) return TR_OK;
    char more[48] = "", odd_text[TR__RANKS_TEXT];
    if (others) snprintf(more, sizeof more, " and %d more tensors", others);

    int right = 0, odd = 0;
    for (int rank = 1; rank < world_size; rank++)
        if (holders(sums + first, world_size, count, rank) > holders(sums + first, world_size, count, right))
            right = rank;
    uint32_t good = sums[(size_t)right * (size_t)count + (size_t)first], bad = good;
    for (int rank = 0; rank < world_size; rank++) {
        uint32_t sum = sums[(size_t)rank * (size_t)count + (size_t)first];
        if (sum == good) continue;
        if (!odd) bad = sum;
        ranks[odd++] = rank;
    }
    const char *name = tr_list_name(list, first);
    tr__ranks_text(ranks, odd, odd, odd_text);
    if (2 * odd < world_size)
        return tr__fail(TR_MISMATCH,
                        "replicas differ: %s %s not the \"%s\"%s of the other %d ranks (CRC-32C %08" PRIx32
                        ", theirs %08" PRIx32 ")",
                        odd_text, odd == 1 ? "has" : "have", name, more, world_size - odd, bad, good);
    return tr__fail(TR_MISMATCH,
                    "replicas differ: %s %s another \"%s\"%s than rank %d (CRC-32C %08" PRIx32 ", there %08" PRIx32
                    "); no majority of the %d ranks tells which is right",
                    odd_text, odd == 1 ? "has" : "have", name, more, right, bad, good, world_size);
}

tr_status tr_check_replicas(tr_group *group, const tr_tensor_list *list)
{
    TR__TRY(tr_status_of(group));
    TR__TRY(tr_status_of(list));
    int count = tr_list_count(list), world_size = tr_world_size(group);
    if (world_size == 1 || !count) return TR_OK;
    uint32_t *own = calloc((size_t)count, sizeof *own), *all = calloc((size_t)count * (size_t)world_size, sizeof *all);
    int *ranks = calloc((size_t)world_size, sizeof *ranks);
    tr_status status =
        own && all && ranks ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for the checksums of %d tensors", count);
    for (int i = 0; i < count && status == TR_OK; i++) status = tr__checksum(tr_list_at(list, i), &own[i]);
    if (status == TR_OK) status = tr_all_gather(group, own, all, count, .dtype = TR_I32);
    if (status == TR_OK) status = say_difference(list, all, world_size, ranks);
    free(ranks);
    free(all);
    free(own);
    return status;
}
