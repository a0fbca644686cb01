/*
 * Images in another size. An output pixel is a weighted sum of 1, 2 x 2 or 4 x 4 pixels, each dimension on its own: first rows
 * are blended into one, then its places. The gradient goes the same way back. Where the pixels are read is PyTorch's rule.
 */
#include "ops/family.h"
#include "ops/sequences.h"

#include "tensor/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

tr_status tr__interpolate_infer(tr_op_call *call)
{
    const tr_interpolate_attrs *a = call->attrs;
    TR__TRY(tr__float_input(call, 0));
    const tr_tensor *x = call->inputs[0];
    tr_shape shape = x->shape;
    if (shape.ndim != 4 || shape.dim[2] < 1 || shape.dim[3] < 1)
        return tr__fail(TR_SHAPE, "interpolate: x is %s: it must be [batch, channels, height, width] or [batch, channels, "
            "length], and have pixels", TR__TEXT(shape));
    if (a->height < 1 || a->width < 1)
        return tr__fail(TR_INVALID, "interpolate: x %s cannot become %" PRId64 " x %" PRId64 ": both must be positive",
            TR__TEXT(shape), a->height, a->width);
    if ((unsigned)a->mode > TR_INTERPOLATE_BICUBIC)
        return tr__fail(TR_INVALID, "interpolate: %d is no tr_interpolation", (int)a->mode);
    if (a->align_corners && a->mode == TR_INTERPOLATE_NEAREST)
        return tr__fail(TR_INVALID, "interpolate: align_corners is for bilinear and bicubic, not for nearest");
    shape.dim[2] = a->height;
    shape.dim[3] = a->width;
    return tr__output_like(call, 0, x, shape, x->dtype);
}

tr_status tr__interpolate_grad_infer(tr_op_call *call)
{
    const tr_interpolate_attrs *a = call->attrs;
    return tr__output_strided(call, 0, a->image, a->image_stride, call->inputs[0]->dtype);
}

/* ---- Where outputs are read ---------------------------------------------------------------------------------------- */

enum { MOST_TAPS = 4 };

typedef struct taps {
    int count;
    int64_t at[MOST_TAPS];
    double weight[MOST_TAPS];
} taps;

/* Keys 1981 with a = -3/4: the weight of what is `distance` away. */
static double cubic(double distance)
{
    const double a = -0.75, d = fabs(distance);
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? a * (((d - 5) * d + 8) * d - 4) : 0;
}

/* As PyTorch has it on CPUs, a scale that leaves the size as it is does not count, nor does that of nearest where the size doubles. */
static taps taps_of(const tr_interpolate_attrs *a, int64_t o, int64_t outputs, int64_t size, double scale)
{
    bool nearest = a->mode == TR_INTERPOLATE_NEAREST;
    if (outputs == size ? a->mode != TR_INTERPOLATE_BICUBIC : nearest && outputs == 2 * size) scale = 0;
    if (nearest) { /* in f32, as PyTorch: where it rounds, the neighbour is the same */
        float step = scale > 0 ? (float)(1 / scale) : (float)size / (float)outputs;
        int64_t at = (int64_t)floorf((float)o * step);
        return (taps){1, {at < size ? at : size - 1}, {1}};
    }
    double step = scale > 0 ? 1 / scale : (double)size / (double)outputs, place = ((double)o + 0.5) * step - 0.5;
    if (a->align_corners) place = outputs > 1 ? (double)o * (double)(size - 1) / (double)(outputs - 1) : 0;
    bool linear = a->mode == TR_INTERPOLATE_BILINEAR;
    if (linear && place < 0) place = 0;
    int64_t first = (int64_t)floor(place);
    if (first > size - 1) first = size - 1;
    double beyond = place - (double)first;
    if (beyond > 1) beyond = 1;
    if (size == 1) return (taps){1, {0}, {1}};
    if (linear) return (taps){2, {first, first + (first < size - 1)}, {1 - beyond, beyond}};
    taps t = {.count = MOST_TAPS};
    for (int k = 0; k < MOST_TAPS; k++) {
        int64_t at = first - 1 + k;
        t.at[k] = at < 0 ? 0 : at < size ? at : size - 1;
        t.weight[k] = cubic(beyond + 1 - k);
    }
    return t;
}

/* ---- Kernels --------------------------------------------------------------------------------------------------------- */

/* Images as planes of rows of w (or ow) places of `inner` numbers: the channels of channels-last ones, else 1. */
typedef struct job {
    int64_t planes, h, w, oh, ow, inner;
    const taps *rows, *columns; /* [oh], [ow] */
    void *x, *y;                /* or their gradients */
} job;

/* For float and double:
 *   blend  to[i] = sum of weight[k] from[at[k]][i], rows of n numbers
 *   spread the way back: to[at[k]][i] += weight[k] from[i]
 *   pick   a row of n places of one number each, blended from a row; all have as many taps
 *   drop   the way back
 *   forward on output rows, numbered through all planes; backward on planes */
#define KERNELS(type)                                                                                              \
    static void blend_##type(type *restrict to, const type *restrict from, const taps *t, int64_t n)               \
    {                                                                                                              \
        const type *row[MOST_TAPS] = {from, from, from, from};                                                     \
        type weight[MOST_TAPS] = {0};                                                                              \
        for (int k = 0; k < t->count; k++) {                                                                       \
            row[k] = from + t->at[k] * n;                                                                          \
            weight[k] = (type)t->weight[k];                                                                        \
        }                                                                                                          \
        if (t->count == 1) memcpy(to, row[0], sizeof *to * (size_t)n);                                             \
        else if (t->count == 2)                                                                                    \
            for (int64_t i = 0; i < n; i++) to[i] = weight[0] * row[0][i] + weight[1] * row[1][i];                 \
        else                                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                        \
                to[i] = weight[0] * row[0][i] + weight[1] * row[1][i] + weight[2] * row[2][i] + weight[3] * row[3][i]; \
    }                                                                                                              \
    static void spread_##type(type *restrict to, const type *restrict from, const taps *t, int64_t n)              \
    {                                                                                                              \
        for (int k = 0; k < t->count; k++) {                                                                       \
            type *row = to + t->at[k] * n, weight = (type)t->weight[k];                                            \
            for (int64_t i = 0; i < n; i++) row[i] += weight * from[i];                                            \
        }                                                                                                          \
    }                                                                                                              \
    static void pick_##type(type *restrict to, const type *restrict from, const taps *t, int64_t n)                \
    {                                                                                                              \
        if (t->count == 1)                                                                                         \
            for (int64_t i = 0; i < n; i++) to[i] = from[t[i].at[0]];                                              \
        else if (t->count == 2)                                                                                    \
            for (int64_t i = 0; i < n; i++)                                                                        \
                to[i] = (type)t[i].weight[0] * from[t[i].at[0]] + (type)t[i].weight[1] * from[t[i].at[1]];         \
        else                                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                                        \
                to[i] = (type)t[i].weight[0] * from[t[i].at[0]] + (type)t[i].weight[1] * from[t[i].at[1]] +        \
                        (type)t[i].weight[2] * from[t[i].at[2]] + (type)t[i].weight[3] * from[t[i].at[3]];         \
    }                                                                                                              \
    static void drop_##type(type *restrict to, const type *restrict from, const taps *t, int64_t n)                \
    {                                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                                            \
            for (int k = 0; k < t->count; k++) to[t[i].at[k]] += (type)t[i].weight[k] * from[i];                   \
    }                                                                                                              \
    static void forward_##type(void *arg, int64_t begin, int64_t end, void *scratch)                               \
    {                                                                                                              \
        const job *j = arg;                                                                                        \
        int64_t line = j->w * j->inner;                                                                            \
        type *blended = scratch;                                                                                   \
        for (int64_t row = begin; row < end; row++) {                                                              \
            blend_##type(blended, (const type *)j->x + row / j->oh * j->h * line, &j->rows[row % j->oh], line);    \
            type *to = (type *)j->y + row * j->ow * j->inner;                                                      \
            if (j->inner == 1) pick_##type(to, blended, j->columns, j->ow);                                        \
            for (int64_t ox = 0; ox < j->ow && j->inner > 1; ox++, to += j->inner)                                 \
                blend_##type(to, blended, &j->columns[ox], j->inner);                                              \
        }                                                                                                          \
    }                                                                                                              \
    static void backward_##type(void *arg, int64_t begin, int64_t end, void *scratch)                              \
    {                                                                                                              \
        const job *j = arg;                                                                                        \
        int64_t line = j->w * j->inner;                                                                            \
        type *gathered = scratch;                                                                                  \
        for (int64_t plane = begin; plane < end; plane++) {                                                        \
            type *image = (type *)j->x + plane * j->h * line;                                                      \
            const type *g = (const type *)j->y + plane * j->oh * j->ow * j->inner;                                 \
            memset(image, 0, sizeof *image * (size_t)(j->h * line));                                               \
            for (int64_t oy = 0; oy < j->oh; oy++) {                                                               \
                memset(gathered, 0, sizeof *gathered * (size_t)line);                                              \
                if (j->inner == 1) drop_##type(gathered, g, j->columns, j->ow);                                    \
                for (int64_t ox = 0; ox < j->ow && j->inner > 1; ox++)                                             \
                    spread_##type(gathered, g + ox * j->inner, &j->columns[ox], j->inner);                         \
                g += j->ow * j->inner;                                                                             \
                spread_##type(image, gathered, &j->rows[oy], line);                                                \
            }                                                                                                      \
        }                                                                                                          \
    }
KERNELS(float)
KERNELS(double)

/* In f32, f64 of f64, in the order of memory of what is written. */
tr_status tr__interpolate_forward(tr_op_call *call)
{
    TR_SCOPE;
    bool gradient = call->op == tr__op(interpolate_grad);
    const tr_interpolate_attrs *a = call->attrs;
    tr_tensor *in = call->inputs[0], *out = call->outputs[0];
    tr_dtype dtype = out->dtype == TR_F64 ? TR_F64 : TR_F32;
    int64_t in_stride[TR_MAX_DIMS], out_stride[TR_MAX_DIMS];
    tr__channels_last(in->shape, in_stride);
    tr__channels_last(out->shape, out_stride);
    bool last = tr__has_strides(out, out_stride);
    tr_tensor *from = tr__staged(in, dtype, last ? in_stride : NULL, true);
    tr_tensor *to = tr__staged(out, dtype, last ? out_stride : NULL, false);
    TR__TRY_ALL(from, to);

    tr_tensor *x = gradient ? to : from, *y = gradient ? from : to;
    tr_shape image = x->shape, made = y->shape;
    job j = {.planes = image.dim[0] * (last ? 1 : image.dim[1]), .h = image.dim[2], .w = image.dim[3], .oh = made.dim[2],
        .ow = made.dim[3], .inner = last ? image.dim[1] : 1, .x = tr__ptr(x), .y = tr__ptr(y)};
    if (tr__numel(made) > 0) {
        taps *table = malloc(sizeof *table * (size_t)(j.oh + j.ow));
        if (!table) return tr__fail(TR_NO_MEMORY, "interpolate: no memory for images of %s", TR__TEXT(made));
        for (int64_t o = 0; o < j.oh; o++) table[o] = taps_of(a, o, j.oh, j.h, a->scale_height);
        for (int64_t o = 0; o < j.ow; o++) table[j.oh + o] = taps_of(a, o, j.ow, j.w, a->scale_width);
        j.rows = table;
        j.columns = table + j.oh;
        bool single = dtype == TR_F32;
        int64_t of_row = (j.w + j.ow) * j.inner, rows = gradient ? j.oh : 1;
        bool done = tr__cpu_for(tr__device_of(y), gradient ? j.planes : j.planes * j.oh, TR__GRAIN / (of_row * rows) + 1,
            tr_dtype_size(dtype) * (size_t)(j.w * j.inner),
            gradient ? single ? backward_float : backward_double : single ? forward_float : forward_double, &j);
        free(table);
        if (!done) return tr__fail(TR_NO_MEMORY, "interpolate: no memory for a row of %s", TR__TEXT(image));
    }
    return tr__unstage(out, to);
}

/* ---- Public function --------------------------------------------------------------------------------------------------- */

/* What is asked for, of an image; lines keep their height of 1. */
static tr_status attrs_of(const tr_interpolate_options *o, const tr_tensor *image, bool line, tr_interpolate_attrs *a)
{
    bool sizes = o->width || o->height;
    if (sizes ? o->scale != 0 || (line ? o->height != 0 : !o->height || !o->width) : !(o->scale > 0 && o->scale < 1e6))
        return tr__fail(TR_INVALID, "interpolate: x %s takes a scale in 0 … 1e6, or %s: they are %g, %" PRId64 " and %" PRId64,
            TR__TEXT(o->x->shape), line ? "a width alone" : "height and width", o->scale, o->height, o->width);
    *a = (tr_interpolate_attrs){.mode = o->mode, .align_corners = o->align_corners, .height = o->height, .width = o->width,
        .scale_height = line ? 0 : o->scale, .scale_width = o->scale, .image = image->shape};
    if (!sizes) {
        a->height = (int64_t)((double)image->shape.dim[2] * o->scale);
        a->width = (int64_t)((double)image->shape.dim[3] * o->scale);
    }
    if (line) a->height = 1;
    tr__strides_like(image, image->shape, a->image_stride);
    return TR_OK;
}

tr_tensor *tr_interpolate_with(const tr_interpolate_options *o)
{
    tr_tensor *x = o->x;
    TR__REQUIRE("interpolate", "x", x);
    bool line = x->shape.ndim == 3;
    if (line) x = tr__as_image(x);
    if (tr__bad(x)) return x;
    tr_interpolate_attrs attrs = {.mode = o->mode};
    if (x->shape.ndim == 4 && attrs_of(o, x, line, &attrs) != TR_OK) return tr__tensor_failed();
    tr_tensor *y = tr_apply(tr__op(interpolate), &attrs, &x, 1, NULL);
    return line ? tr__as_sequence(y) : y;
}
