#include "tensor/loop.h"

#include <string.h>

/* Are dimensions d and d + 1 one run in every tensor? */
static bool mergeable(const tr__loop *loop, int d)
{
    for (int k = 0; k < loop->n; k++)
        if (loop->stride[k][d] != loop->stride[k][d + 1] * loop->shape.dim[d + 1]) return false;
    return true;
}

static void remove_dim(tr__loop *loop, int d)
{
    int behind = loop->shape.ndim - d - 1;
    for (int k = 0; k < loop->n; k++)
        memmove(&loop->stride[k][d], &loop->stride[k][d + 1], sizeof(int64_t) * (size_t)behind);
    memmove(&loop->shape.dim[d], &loop->shape.dim[d + 1], sizeof(int64_t) * (size_t)behind);
    loop->shape.ndim--;
}

/* Puts the dimension of the first tensor's smallest step last, and so on: a channels-last image is written in order. */
static void sort_dims(tr__loop *loop)
{
    for (int d = 1; d < loop->shape.ndim; d++)
        for (int e = d; e > 0 && loop->stride[0][e - 1] < loop->stride[0][e]; e--) {
            int64_t size = loop->shape.dim[e];
            loop->shape.dim[e] = loop->shape.dim[e - 1];
            loop->shape.dim[e - 1] = size;
            for (int k = 0; k < loop->n; k++) {
                int64_t step = loop->stride[k][e];
                loop->stride[k][e] = loop->stride[k][e - 1];
                loop->stride[k][e - 1] = step;
            }
        }
}

void tr__loop_init(tr__loop *loop, tr_shape shape, const tr_tensor *const *tensors, int n)
{
    loop->shape = shape;
    loop->n = n;
    for (int k = 0; k < n; k++) {
        loop->base[k] = tr__ptr(tensors[k]);
        loop->dtype[k] = tensors[k]->dtype;
        loop->bytes[k] = (int64_t)tr_dtype_size(tensors[k]->dtype);
        tr__broadcast_strides(tensors[k], shape, loop->stride[k]);
    }
    for (int d = shape.ndim; d-- > 0;)
        if (loop->shape.dim[d] == 1) remove_dim(loop, d);
    sort_dims(loop);
    for (int d = loop->shape.ndim - 1; d-- > 0;)
        if (mergeable(loop, d)) {
            loop->shape.dim[d + 1] *= loop->shape.dim[d];
            remove_dim(loop, d);
        }
    if (loop->shape.ndim) return;
    loop->shape = TR_SHAPE(1);
    for (int k = 0; k < n; k++) loop->stride[k][0] = 1;
}

typedef struct job {
    const tr__loop *loop;
    tr__loop_body body;
    const void *arg;
} job;

/* Steps from the start of a run to that of the next. */
static void next_run(const tr__loop *loop, int64_t *index, char **at)
{
    for (int d = loop->shape.ndim - 2; d >= 0; d--) {
        bool carry = ++index[d] == loop->shape.dim[d];
        int64_t steps = carry ? 1 - loop->shape.dim[d] : 1;
        if (carry) index[d] = 0;
        for (int k = 0; k < loop->n; k++) at[k] += steps * loop->stride[k][d] * loop->bytes[k];
        if (!carry) return;
    }
}

/* Elements begin to end in the order of the loop's dimensions: whole runs, but for the first and the last. */
static void run_part(void *arg, int64_t begin, int64_t end)
{
    const job *j = arg;
    const tr__loop *loop = j->loop;
    int last = loop->shape.ndim - 1;
    int64_t run = loop->shape.dim[last], index[TR_MAX_DIMS], first = begin % run, rest = begin / run;
    char *row[TR__LOOP_TENSORS], *at[TR__LOOP_TENSORS]; /* where the run begins, and where to begin in it */
    for (int d = last - 1; d >= 0; d--) {
        index[d] = rest % loop->shape.dim[d];
        rest /= loop->shape.dim[d];
    }
    for (int k = 0; k < loop->n; k++) {
        int64_t offset = 0;
        for (int d = 0; d < last; d++) offset += index[d] * loop->stride[k][d];
        row[k] = loop->base[k] + offset * loop->bytes[k];
    }
    for (int64_t n; begin < end; begin += n, first = 0) {
        n = run - first < end - begin ? run - first : end - begin;
        for (int k = 0; k < loop->n; k++) at[k] = row[k] + first * loop->stride[k][last] * loop->bytes[k];
        j->body(loop, at, n, j->arg);
        next_run(loop, index, row);
    }
}

void tr__loop_run(const tr__loop *loop, tr__pool *pool, tr__loop_body body, const void *arg)
{
    int64_t n = tr__numel(loop->shape);
    if (n == 0) return;
    job j = {loop, body, arg};
    if (loop->shape.ndim == 1 && n <= TR__GRAIN)
        body(loop, loop->base, n, arg);
    else
        tr__pool_for(pool, n, TR__GRAIN, run_part, &j);
}
