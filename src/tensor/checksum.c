#include "tensor/checksum.h"

#include "base/crc32c.h"
#include "device/device.h"
#include "tensor/tensor.h"

#include <stdlib.h>

enum { PIECE = 1 << 20 /* bytes that one thread sums at once */ };

typedef struct summing {
    const char *data;
    uint64_t bytes;
    uint32_t *sums; /* of each piece */
} summing;

static uint64_t piece_bytes(const summing *s, int64_t piece)
{
    uint64_t left = s->bytes - (uint64_t)piece * PIECE;
    return left < PIECE ? left : PIECE;
}

static void sum_pieces(void *arg, int64_t begin, int64_t end)
{
    const summing *s = arg;
    for (int64_t i = begin; i < end; i++) s->sums[i] = tr__crc32c(0, s->data + (uint64_t)i * PIECE, piece_bytes(s, i));
}

tr_status tr__checksum(const tr_tensor *t, uint32_t *sum)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    summing s = {.data = tr__ptr(flat), .bytes = (uint64_t)tr_numel(flat) * tr_dtype_size(flat->dtype)};
    int64_t pieces = (int64_t)((s.bytes + PIECE - 1) / PIECE);
    s.sums = malloc(((size_t)pieces + 1) * sizeof *s.sums);
    if (!s.sums) return tr__fail(TR_NO_MEMORY, "no memory for checksums");
    tr__pool_for(tr__pool_of(flat), pieces, 1, sum_pieces, &s);
    *sum = 0;
    for (int64_t i = 0; i < pieces; i++) *sum = tr__crc32c_combine(*sum, s.sums[i], piece_bytes(&s, i));
    free(s.sums);
    return TR_OK;
}
