/*
 * The k largest or smallest elements along one dimension, in order, and where they were; all of them: a sort.
 *
 * Elements become keys, unsigned numbers that are ordered as the results are to be, so that one comparison serves all
 * dtypes. Among equals the first comes first. A heap keeps the k best of what has been seen of a row; where k is much of the
 * row, all of it is sorted, by the digits of the keys.
 */
#include "ops/family.h"
#include "ops/rows.h"

#include <inttypes.h>
#include <string.h>

static tr_tensor *failed(tr_tensor **indices)
{
    tr_tensor *t = tr__tensor_failed();
    if (indices) *indices = t;
    return t;
}

static tr_tensor *apply(tr_tensor *x, const tr_topk_attrs *attrs, tr_tensor **indices)
{
    tr_tensor *outputs[TR_OP_MAX_OUTPUTS] = {NULL};
    tr_tensor *values = tr_apply(tr__op(topk), attrs, &x, 1, outputs);
    if (indices) *indices = tr__bad(values) ? values : outputs[1];
    return values;
}

tr_tensor *tr_topk_with(const tr_topk_options *o)
{
    tr_topk_attrs attrs = {.k = o->k, .smallest = o->smallest};
    if (o->x && !tr__bad(o->x) && tr__dim("topk", o->x->shape, o->dim, &attrs.dim) != TR_OK) return failed(o->indices);
    return apply(o->x, &attrs, o->indices);
}

tr_tensor *tr_sort_with(const tr_sort_options *o)
{
    tr_topk_attrs attrs = {.smallest = !o->descending};
    if (!o->x && tr__fail(TR_INVALID, "sort: x is NULL") != TR_OK) return failed(o->indices);
    if (o->x && !tr__bad(o->x)) {
        if (tr__dim("sort", o->x->shape, o->dim, &attrs.dim) != TR_OK) return failed(o->indices);
        attrs.k = o->x->shape.dim[attrs.dim];
    }
    return apply(o->x, &attrs, o->indices);
}

tr_status tr__topk_infer(tr_op_call *call)
{
    TR__TRY(tr__given(call, 0));
    const tr_topk_attrs *attrs = call->attrs;
    const tr_tensor *x = call->inputs[0];
    tr_shape shape = x->shape;
    if (attrs->k < 0 || attrs->k > shape.dim[attrs->dim])
        return tr__fail(TR_INVALID, "topk: k is %" PRId64 ": dimension %d of %s has 0 to %" PRId64 " elements to give",
            attrs->k, attrs->dim, TR__TEXT(shape), shape.dim[attrs->dim]);
    shape.dim[attrs->dim] = attrs->k;
    TR__TRY(tr_op_output(call, 0, shape, x->dtype));
    return tr_op_output(call, 1, shape, TR_I64);
}

/* ---- Reference kernel ------------------------------------------------------------------------------------------ */

typedef struct entry {
    uint64_t key;
    int64_t at;
} entry;

typedef struct job {
    const tr_topk_attrs *attrs;
    tr__rows x, values, indices;
} job;

/* An element as it is read: of floats, or of integers. */
typedef union number {
    double f;
    int64_t i;
} number;

/* Larger numbers have larger keys, NaN the largest; 0 and -0 are equal. Without branches, for vectors. */
static uint64_t key_of_single(double x)
{
    const uint32_t sign = UINT32_C(1) << 31;
    float single = (float)x + 0.0f;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits ^= (0 - (bits >> 31)) | sign;
    return single != single ? UINT32_MAX : bits;
}

static uint64_t key_of_double(double x)
{
    const uint64_t sign = UINT64_C(1) << 63;
    uint64_t bits;
    if (x != x) return UINT64_MAX;
    x += 0.0;
    memcpy(&bits, &x, sizeof bits);
    return bits & sign ? ~bits : bits | sign;
}

static bool before(entry a, entry b)
{
    return a.key != b.key ? a.key < b.key : a.at < b.at;
}

static void swap(entry *a, entry *b)
{
    entry was = *a;
    *a = *b;
    *b = was;
}

/* heap: n entries, the last one to be kept on top. Its top has been replaced. */
static void sift_down(entry *heap, int64_t n)
{
    for (int64_t i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child], heap[child + 1])) child++;
        if (!before(heap[i], heap[child])) return;
        swap(&heap[i], &heap[child]);
    }
}

static void sift_up(entry *heap, int64_t i)
{
    for (int64_t parent; i > 0 && before(heap[parent = (i - 1) / 2], heap[i]); i = parent) swap(&heap[i], &heap[parent]);
}

/* The elements of row r, whole, and their keys. Those of f32 and less are of 32 bits: half the digits to sort by. */
static void read_row(const job *j, int64_t r, number *row, uint64_t *keys)
{
    tr_dtype dtype = j->x.dtype;
    bool floats = tr_dtype_is_float(dtype);
    const int64_t n = j->x.n;
    for (int64_t first = 0, some; first < n; first += some) {
        some = tr__row_block(&j->x, first);
        if (floats) tr__row_read(&j->x, r, first, some, &row[first].f);
        else tr__row_read_i64(&j->x, r, first, some, &row[first].i);
    }
    uint64_t flipped = j->attrs->smallest ? 0 : UINT64_MAX;
    if (!floats)
        for (int64_t i = 0; i < n; i++) keys[i] = (uint64_t)row[i].i ^ (UINT64_C(1) << 63) ^ flipped;
    else if (dtype == TR_F64)
        for (int64_t i = 0; i < n; i++) keys[i] = key_of_double(row[i].f) ^ flipped;
    else
        for (int64_t i = 0; i < n; i++) keys[i] = key_of_single(row[i].f) ^ flipped;
}

/* Sorts n entries that are in the order of their places; scratch has room for as many, and may be where they are then. Few by
 * insertion, others by digits of the keys, the lowest first, each time keeping the order there is; digits that all share are passed
 * over. */
static entry *sort_row(entry *entries, int64_t n, entry *scratch)
{
    enum { FEW = 64 };
    for (int64_t i = 1; i < n && n < FEW; i++) {
        entry e = entries[i];
        int64_t to = i;
        for (; to && before(e, entries[to - 1]); to--) entries[to] = entries[to - 1];
        entries[to] = e;
    }
    if (n < FEW) return entries;
    entry *from = entries, *to = scratch;
    int bits = n < 4096 ? 8 : 11;
    uint64_t differ = 0, mask = (UINT64_C(1) << bits) - 1;
    for (int64_t i = 1; i < n; i++) differ |= from[i].key ^ from[0].key;
    for (int shift = 0; shift < 64; shift += bits) {
        int64_t place[1 << 11], at = 0;
        if (!(differ >> shift & mask)) continue;
        memset(place, 0, sizeof *place * (mask + 1));
        for (int64_t i = 0; i < n; i++) place[from[i].key >> shift & mask]++;
        for (uint64_t d = 0; d <= mask; d++) {
            int64_t count = place[d];
            place[d] = at;
            at += count;
        }
        for (int64_t i = 0; i < n; i++) to[place[from[i].key >> shift & mask]++] = from[i];
        entry *sorted = to;
        to = from;
        from = sorted;
    }
    return from;
}

/* Memory for a row: its elements and their keys, and twice as many entries. */
typedef struct room {
    number *row;
    uint64_t *keys;
    entry *entries, *scratch;
} room;

/* The first k of a row, in order. */
static const entry *select_row(const job *j, const room *m)
{
    int64_t k = j->attrs->k, n = j->x.n;
    entry *best = m->entries;
    if (k > n / 16) {
        for (int64_t i = 0; i < n; i++) best[i] = (entry){m->keys[i], i};
        return sort_row(best, n, m->scratch);
    }
    for (int64_t i = 0; i < k; i++) {
        best[i] = (entry){m->keys[i], i};
        sift_up(best, i);
    }
    for (int64_t i = k; i < n; i++) { /* of equals the first, which are in the heap, come first */
        if (m->keys[i] >= best[0].key) continue;
        best[0] = (entry){m->keys[i], i};
        sift_down(best, k);
    }
    for (int64_t last = k - 1; last > 0; last--) { /* the last one goes behind the others, and these are a heap again */
        swap(&best[0], &best[last]);
        sift_down(best, last);
    }
    return best;
}

static void put_row(const job *j, int64_t r, const room *m, const entry *best)
{
    int64_t at[TR__ROW_BLOCK];
    number values[TR__ROW_BLOCK];
    for (int64_t first = 0, n; first < j->attrs->k; first += n) {
        n = tr__row_block(&j->values, first);
        for (int64_t i = 0; i < n; i++) {
            at[i] = best[first + i].at;
            values[i] = m->row[at[i]];
        }
        tr__row_write_i64(&j->indices, r, first, n, at);
        if (tr_dtype_is_float(j->x.dtype)) tr__row_write(&j->values, r, first, n, &values[0].f);
        else tr__row_write_i64(&j->values, r, first, n, &values[0].i);
    }
}

static void select_rows(void *arg, int64_t begin, int64_t end, void *memory)
{
    const job *j = arg;
    size_t n = (size_t)j->x.n;
    room m = {.entries = memory};
    m.scratch = m.entries + n;
    m.row = (number *)(m.scratch + n);
    m.keys = (uint64_t *)(m.row + n);
    for (int64_t r = begin; r < end; r++) {
        read_row(j, r, m.row, m.keys);
        put_row(j, r, &m, select_row(j, &m));
    }
}

tr_status tr__topk_forward(tr_op_call *call)
{
    const tr_topk_attrs *attrs = call->attrs;
    int dim = attrs->dim;
    if (attrs->k == 0) return TR_OK;
    job j = {attrs, tr__rows_of(call->inputs[0], dim), tr__rows_of(call->outputs[0], dim),
        tr__rows_of(call->outputs[1], dim)};
    size_t bytes = (size_t)j.x.n * (sizeof(number) + sizeof(uint64_t) + 2 * sizeof(entry));
    tr_device device = tr__device_of(call->outputs[0]);
    if (tr__cpu_for(device, j.x.others.n, tr__row_grain(8 * j.x.n), bytes, select_rows, &j)) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "topk: no memory to sort %" PRId64 " elements", j.x.n);
}

/* To where the elements were. */
TR__BACKWARD(topk, tr_topk_attrs,
    tr_scatter_add(tr__zeros_like(g, tr__input_shape(call, 0)), a->dim, call->outputs[1], g))
