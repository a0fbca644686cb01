/*
 * Do ranks still hold the same? Each sums up its tensors (CRC-32C, one pass over memory), and one all_gather compares a
 * sum of these sums. Where it differs a second one exchanges the sums of all tensors, and the majority tells which
 * ranks are odd.
 */
#include "parallel/replicas.h"

#include "base/check.h"
#include "base/crc32c.h"
#include "base/object.h"
#include "comm/control.h"
#include "comm/group/agree.h"
#include "comm/record/ranks_text.h"
#include "tensor/checksum.h"

#include <trireme/parallel.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The ranks' sums of one tensor: sums[rank * count]. */
static bool sums_differ(const uint32_t *sums, int world_size, int count)
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
static tr_status say_difference(const tr_tensor_list *list, const uint32_t *sums, int world_size, const char *words,
                                int *ranks)
{
    int count = tr_list_count(list), first = -1, others = -1;
    for (int i = 0; i < count; i++) {
        if (!sums_differ(sums + i, world_size, count)) continue;
        if (first < 0) first = i;
        others++;
    }
    char more[48] = "", odd_text[TR__RANKS_TEXT];
    if (others) snprintf(more, sizeof more, " and %d other tensor%s", others, others == 1 ? "" : "s");

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
    const char *differ = odd == 1 ? "differs" : "differ";
    if (2 * odd < world_size)
        return tr__fail(TR_MISMATCH, "%s: %s %s from the other %d ranks in \"%s\"%s (CRC-32C %08" PRIx32 ", theirs %08" PRIx32 ")",
            words, odd_text, differ, world_size - odd, name, more, bad, good);
    return tr__fail(TR_MISMATCH, "%s: %s %s from rank %d in \"%s\"%s (CRC-32C %08" PRIx32 ", there %08" PRIx32
        "); no majority of the %d ranks tells which is right", words, odd_text, differ, right, name, more, bad, good, world_size);
}

enum { SUM, FAILED, SAID }; /* what each rank says first: the sums of all tensors, in one; whether it could not sum them up */

/* Ranks that agree exchange no more than what they say first. */
static tr_status exchange(tr_group *group, const tr_tensor_list *list, uint32_t *own, uint32_t *all, bool *same)
{
    int count = tr_list_count(list), world_size = tr_world_size(group), failed = 0;
    tr_status status = tr_status_of(list);
    for (int i = 0; i < count && status == TR_OK; i++) status = tr__checksum(tr_list_at(list, i), &own[i]);
    tr__error *error = status == TR_OK ? NULL : tr__error_take();
    const uint32_t said[SAID] = {[SUM] = tr__crc32c(0, own, (size_t)count * sizeof *own), [FAILED] = error != NULL};
    tr_status told = tr_all_gather(group, said, all, SAID, .dtype = TR_I32);
    if (error) status = tr__error_restore(error);
    if (told != TR_OK) return status == TR_OK ? told : status;
    for (int rank = 0; rank < world_size; rank++) failed += all[rank * SAID + FAILED] != 0;
    if (failed) return tr__agree(group, "replicas", status, NULL);
    *same = !sums_differ(all, world_size, SAID);
    return *same ? TR_OK : tr_all_gather(group, own, all, count, .dtype = TR_I32);
}

tr_status tr__replicas_compare(tr_group *group, const tr_tensor_list *list, const char *words, bool *differ)
{
    *differ = false;
    TR__TRY(tr_status_of(group));
    int count = tr_list_count(list), world_size = tr_world_size(group);
    if (world_size == 1) return tr_status_of(list);
    size_t room = (size_t)(count > SAID ? count : SAID);
    uint32_t *own = calloc(room, sizeof *own), *all = calloc(room * (size_t)world_size, sizeof *all);
    int *ranks = calloc((size_t)world_size, sizeof *ranks);
    bool same = true;
    tr_status status = own && all && ranks
                           ? exchange(group, list, own, all, &same)
                           : tr__group_tell(group, tr__fail(TR_NO_MEMORY, "no memory for the checksums of %d tensors", count));
    if (status == TR_OK && !same) {
        *differ = true;
        status = say_difference(list, all, world_size, words, ranks);
    }
    free(ranks);
    free(all);
    free(own);
    return status;
}

tr_status tr_check_replicas(tr_group *group, const tr_tensor_list *list)
{
    bool differ;
    return tr__replicas_compare(group, list, "replicas differ", &differ);
}

int64_t tr__replicas_every(int64_t every)
{
    if (every == -1) return 0;
    return every > 0 && tr__check_asks("replicas") ? 1 : every;
}
