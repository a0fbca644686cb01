/*
 * A tensor is summed in pieces, by all threads: each piece by itself, then combined in order, so that the sum does not
 * depend on who summed what.
 */
#include "tensor/checksum.h"

#include "base/crc32c.h"
#include "device/device.h"
#include "tensor/tensor.h"

#include <stdlib.h>

enum { PIECE = 256 << 10 /* bytes that one thread sums at once */ };

typedef struct job {
    const char *data;
    size_t bytes;
    uint32_t *sums; /* of the pieces */
} job;

static size_t bytes_of_piece(const job *j, int64_t i)
{
    size_t left = j->bytes - (size_t)i * PIECE;
    return left < PIECE ? left : PIECE;
}

static void sum_pieces(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    for (int64_t i = begin; i < end; i++) j->sums[i] = tr__crc32c(0, j->data + (size_t)i * PIECE, bytes_of_piece(j, i));
}

tr_status tr__checksum(const tr_tensor *t, uint32_t *sum)
{
    TR_SCOPE;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    job j = {.data = tr__ptr(flat), .bytes = (size_t)tr_numel(flat) * tr_dtype_size(flat->dtype)};
    int64_t count = (int64_t)((j.bytes + PIECE - 1) / PIECE);
    j.sums = calloc((size_t)count + 1, sizeof *j.sums);
    if (!j.sums) return tr__fail(TR_NO_MEMORY, "no memory for checksums");
    tr__pool_for(tr__pool_of(flat), count, 1, sum_pieces, &j);
    *sum = j.sums[0];
    for (int64_t i = 1; i < count; i++) *sum = tr__crc32c_combine(*sum, j.sums[i], bytes_of_piece(&j, i));
    free(j.sums);
    return TR_OK;
}
