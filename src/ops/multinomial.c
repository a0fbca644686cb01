/* Drawing classes by their weights. No op of a graph: what it draws has no gradient. */
#include "base/rng.h"
#include "ops/family.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* (0, 1], 53 bits */
static double uniform(uint64_t key, int64_t number)
{
    tr__philox r = tr__philox_at(key, 0, (uint64_t)number);
    uint64_t bits = (uint64_t)r.word[0] << 21 ^ r.word[1] >> 11;
    return (double)(bits + 1) * 0x1p-53;
}

/* Where a uniform number falls among the sums of the weights. cumulative: [classes], rising. */
static void draw_with_replacement(const double *cumulative, int64_t classes, int64_t count, uint64_t key, int64_t *out)
{
    double sum = cumulative[classes - 1];
    for (int64_t i = 0; i < count; i++) {
        double at = uniform(key, i) * sum; /* (0, sum] */
        int64_t low = 0, high = classes - 1;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (cumulative[middle] < at) low = middle + 1;
            else high = middle;
        }
        out[i] = low;
    }
}

typedef struct arrival {
    double time;
    int64_t class;
} arrival;

static int by_time(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->class < y->class ? -1 : 1;
}

/* Each class with a weight waits for an exponential time of that rate, and the first ones are drawn (Efraimidis and
 * Spirakis 2006). arrivals: [classes] */
static void draw_without_replacement(const double *weights, int64_t classes, int64_t count, uint64_t key, arrival *arrivals, int64_t *out)
{
    size_t n = 0;
    for (int64_t c = 0; c < classes; c++)
        if (weights[c] > 0) arrivals[n++] = (arrival){-log(uniform(key, c)) / weights[c], c};
    qsort(arrivals, n, sizeof *arrivals, by_time);
    for (int64_t i = 0; i < count; i++) out[i] = arrivals[i].class;
}

/* A row's weights are to be finite, none below 0, and as many above 0 as are drawn without replacement. */
static tr_status check_row(const double *weights, int64_t row, int64_t classes, int64_t needed)
{
    int64_t positive = 0;
    double sum = 0;
    for (int64_t c = 0; c < classes; c++) {
        if (!(weights[c] >= 0))
            return tr__fail(TR_INVALID, "multinomial: weight %g of class %" PRId64 " in row %" PRId64 " is below 0 or NaN", weights[c],
                c, row);
        positive += weights[c] > 0;
        sum += weights[c];
    }
    if (isinf(sum)) return tr__fail(TR_INVALID, "multinomial: the weights of row %" PRId64 " have an infinite sum", row);
    if (positive >= needed) return TR_OK;
    return tr__fail(TR_INVALID, "multinomial: row %" PRId64 " has %" PRId64 " classes of a weight above 0, and %" PRId64
        " are to be drawn: with .replacement it takes 1", row, positive, needed);
}

/* weights: f64 [rows, classes], contiguous; out: [rows, count] */
static tr_status draw(const tr_multinomial_options *o, const double *weights, int64_t rows, int64_t classes, int64_t *out)
{
    double *sums = o->replacement ? malloc(sizeof *sums * (size_t)classes) : NULL;
    arrival *arrivals = o->replacement ? NULL : malloc(sizeof *arrivals * (size_t)classes);
    if (!sums && !arrivals) return tr__fail(TR_NO_MEMORY, "multinomial: no memory to draw %" PRId64, o->count);
    tr_status status = TR_OK;
    for (int64_t row = 0; row < rows; row++) {
        const double *own = weights + row * classes;
        uint64_t key = tr__mix(o->seed, (uint64_t)row);
        status = check_row(own, row, classes, o->replacement ? 1 : o->count);
        if (status != TR_OK) break;
        if (o->replacement) {
            for (int64_t c = 0; c < classes; c++) sums[c] = own[c] + (c ? sums[c - 1] : 0);
            draw_with_replacement(sums, classes, o->count, key, out + row * o->count);
        } else {
            draw_without_replacement(own, classes, o->count, key, arrivals, out + row * o->count);
        }
    }
    free(sums);
    free(arrivals);
    return status;
}

tr_tensor *tr_multinomial_with(const tr_multinomial_options *o)
{
    TR__REQUIRE("multinomial", "weights", o->weights);
    tr_shape shape = o->weights->shape;
    int64_t classes = shape.ndim ? shape.dim[shape.ndim - 1] : 0;
    if (!tr_dtype_is_float(o->weights->dtype))
        return tr__tensor_fail(TR_DTYPE, "multinomial: weights are floats, not %s", tr_dtype_name(o->weights->dtype));
    if (classes < 1) return tr__tensor_fail(TR_SHAPE, "multinomial: %s has no classes in its last dimension", TR__TEXT(shape));
    if (o->count < 1 || (!o->replacement && o->count > classes))
        return tr__tensor_fail(TR_INVALID, "multinomial: it draws 1 to %" PRId64 " of %" PRId64 " classes without .replacement, not %"
            PRId64, classes, classes, o->count);
    TR_SCOPE;
    tr_device device = tr__device_of(o->weights);
    bool recording = tr__grad_mode_set(false);
    tr_tensor *weights = tr_contiguous(tr_to(tr_cast(o->weights, TR_F64), tr_cpu(0)));
    tr__grad_mode_set(recording);
    if (tr__bad(weights)) return tr_escape(tr__tensor_pass(weights));
    shape.dim[shape.ndim - 1] = o->count;
    tr_tensor *drawn = tr_empty(shape, .dtype = TR_I64);
    if (tr__bad(drawn)) return tr_escape(drawn);
    if (draw(o, tr__ptr(weights), tr_numel(weights) / classes, classes, tr__ptr(drawn)) != TR_OK)
        return tr_escape(tr__tensor_failed());
    return tr_escape(tr_to(drawn, device));
}
