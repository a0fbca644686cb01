/*
 * Tensors are summed in pieces, by all threads: each piece by itself, then combined in order, so that the sum does not
 * depend on who summed what. Pieces of a list's tensors make one loop, as most tensors of a model are smaller than what
 * is worth waking a thread.
 */
#include "tensor/checksum.h"

#include "base/crc32c.h"
#include "device/device.h"
#include "tensor/list.h"

#include <stdlib.h>

enum { PIECE = 1 << 20 /* bytes that one thread sums at once */ };

typedef struct piece {
    const char *data;
    size_t bytes;
    uint32_t sum;
} piece;

static void sum_pieces(void *arg, int64_t begin, int64_t end)
{
    piece *p = arg;
    for (int64_t i = begin; i < end; i++) p[i].sum = tr__crc32c(0, p[i].data, p[i].bytes);
}

static uint64_t bytes_of(const tr_tensor *t)
{
    return (uint64_t)tr_numel(t) * tr_dtype_size(t->dtype);
}

static int64_t pieces_of(const tr_tensor *t)
{
    return (int64_t)((bytes_of(t) + PIECE - 1) / PIECE);
}

/* Appends a tensor's pieces. Returns how many. */
static int64_t cut(const tr_tensor *t, piece *to)
{
    uint64_t bytes = bytes_of(t);
    for (int64_t i = 0; i < pieces_of(t); i++) {
        uint64_t from = (uint64_t)i * PIECE, left = bytes - from;
        to[i] = (piece){.data = (const char *)tr__ptr(t) + from, .bytes = left < PIECE ? left : PIECE};
    }
    return pieces_of(t);
}

static uint32_t combine(const piece *p, int64_t count)
{
    uint32_t sum = count ? p[0].sum : 0;
    for (int64_t i = 1; i < count; i++) sum = tr__crc32c_combine(sum, p[i].sum, p[i].bytes);
    return sum;
}

tr_status tr__checksum(const tr_tensor *t, uint32_t *sum)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    piece *pieces = malloc(((size_t)pieces_of(flat) + 1) * sizeof *pieces);
    if (!pieces) return tr__fail(TR_NO_MEMORY, "no memory for checksums");
    int64_t count = cut(flat, pieces);
    tr__pool_for(tr__pool_of(flat), count, 1, sum_pieces, pieces);
    *sum = combine(pieces, count);
    free(pieces);
    return TR_OK;
}

static bool lies_in_place(const tr_tensor *t)
{
    return tr_data(t) && tr_is_contiguous(t);
}

tr_status tr__checksums(const tr_tensor_list *list, uint32_t *sums)
{
    int64_t count = 0;
    for (int i = 0; i < list->count; i++) count += pieces_of(list->entries[i].tensor);
    piece *pieces = malloc(((size_t)count + 1) * sizeof *pieces);
    if (!pieces) return tr__fail(TR_NO_MEMORY, "no memory for the checksums of %d tensors", list->count);
    tr_status status = TR_OK;
    const tr_tensor *any = NULL;
    count = 0;
    for (int i = 0; i < list->count && status == TR_OK; i++) {
        const tr_tensor *t = list->entries[i].tensor;
        status = tr_status_of(t);
        if (status == TR_OK && lies_in_place(t))
            count += cut(any = t, pieces + count);
        else if (status == TR_OK)
            status = tr__checksum(t, &sums[i]);
    }
    if (status == TR_OK && count) tr__pool_for(tr__pool_of(any), count, 1, sum_pieces, pieces);
    count = 0;
    for (int i = 0; i < list->count && status == TR_OK; i++) {
        const tr_tensor *t = list->entries[i].tensor;
        if (!lies_in_place(t)) continue;
        sums[i] = combine(pieces + count, pieces_of(t));
        count += pieces_of(t);
    }
    free(pieces);
    return status;
}
