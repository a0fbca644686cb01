/*
 * Convolutions by oneDNN: in bf16 where it has instructions for that, else in f32, which 16-bit floats are brought to. Images
 * lie channels-last, as oneDNN takes them nearly as fast as its own layouts; weights are brought to its layout before each use,
 * and gradients of weights back from it. The batch is cut into parts, one task each: their size depends on the convolution
 * only, and sums over the parts go in order, so results do not depend on the threads.
 */
#include "base/isa.h"
#include "ops/conv.h"
#include "ops/onednn/engine.h"
#include "ops/onednn/kernels.h"
#include "ops/onednn/primitive.h"

#include "tensor/loop.h"

#include <stdio.h>
#include <string.h>

/* Multiplications and additions in a task that is worth another thread; those of a part of a gradient of weights, which
 * costs memory for another set of them; and the most bytes that such parts take. */
enum { TASK_WORK = 2 << 20, SUM_WORK = 8 << 20, SUM_PARTS = 16, SUM_BYTES = 64 << 20 };

typedef struct request {
    tr__conv2d s;
    int kind; /* of the primitive */
    bool with_bias;
    tr_dtype dtype; /* of images, and of the weight that meets them: f32 or bf16. Biases and gradients of weights are f32 */
} request;

/* ---- Primitives ----------------------------------------------------------------------------------------------------- */

enum { X, WEIGHT, Y, BIAS };

static dnnl_data_type_t type_of(tr_dtype dtype)
{
    return dtype == TR_BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t describe_images(tr__dnnl_desc *desc, const request *r, int64_t c, int64_t h, int64_t w)
{
    int64_t stride[TR_MAX_DIMS];
    tr_shape shape = TR_SHAPE(r->s.n, c, h, w);
    tr__channels_last(shape, stride);
    return tr__dnnl_desc_new(desc, type_of(r->dtype), 4, shape.dim, stride);
}

/* Plain and f32, as in the arena, or in any layout. */
static dnnl_status_t describe_weight(tr__dnnl_desc *desc, const request *r, bool plain)
{
    const tr__conv2d *s = &r->s;
    tr_shape grouped = TR_SHAPE(s->groups, s->k / s->groups, s->c / s->groups, s->kh, s->kw);
    tr_shape shape = s->groups > 1 ? grouped : TR_SHAPE(s->k, s->c, s->kh, s->kw);
    int64_t stride[TR_MAX_DIMS];
    tr__row_major(shape, stride);
    bool is_f32 = plain || r->kind == TR__DNNL_CONV_GRAD_WEIGHT;
    return tr__dnnl_desc_new(desc, is_f32 ? dnnl_f32 : type_of(r->dtype), shape.ndim, shape.dim, plain ? stride : NULL);
}

static dnnl_status_t describe(tr__primitive *p, const request *r)
{
    static const int names[3][4] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS},
    };
    const tr__conv2d *s = &r->s;
    memcpy(p->argument, names[r->kind - TR__DNNL_CONV_FORWARD], sizeof *names);
    p->parts = r->with_bias ? 4 : 3;
    dnnl_status_t status = describe_images(&p->desc[X], r, s->c, s->h, s->w);
    if (status == dnnl_success) status = describe_weight(&p->desc[WEIGHT], r, false);
    if (status == dnnl_success) status = describe_images(&p->desc[Y], r, s->k, s->oh, s->ow);
    if (status == dnnl_success && r->with_bias)
        status = tr__dnnl_desc_new(&p->desc[BIAS], dnnl_f32, 1, &s->k, &(int64_t){1});
    return status;
}

static dnnl_status_t make_convolution(tr__primitive *p, dnnl_engine_t engine, const void *user, dnnl_primitive_attr_t attr,
    dnnl_primitive_desc_t *desc)
{
    static const dnnl_prop_kind_t kinds[] = {dnnl_forward_training, dnnl_backward_data, dnnl_backward_weights};
    static const char *const names[] = {"convolution", "gradient of a convolution's input", "gradient of its weight"};
    const request *r = user;
    const tr__conv2d *s = &r->s;
    int which = r->kind - TR__DNNL_CONV_FORWARD;
    snprintf(p->text, sizeof p->text, "%s [%lld, %lld, %lld, %lld] x [%lld, %lld, %lld, %lld]", names[which], (long long)s->n,
        (long long)s->c, (long long)s->h, (long long)s->w, (long long)s->k, (long long)(s->c / s->groups),
        (long long)s->kh, (long long)s->kw);
    tr__dnnl_conv c = {kinds[0], {s->stride, s->stride}, {s->dilation - 1, s->dilation - 1}, {s->padding, s->padding}};
    tr__dnnl_desc *x = &p->desc[X], *weight = &p->desc[WEIGHT], *bias = r->with_bias ? &p->desc[BIAS] : NULL, *y = &p->desc[Y];
    dnnl_primitive_desc_t forward = NULL;
    dnnl_status_t status = describe(p, r);
    if (status == dnnl_success && which) status = tr__dnnl_convolution(&forward, engine, &c, x, weight, bias, y, NULL, attr);
    c.kind = kinds[which];
    if (status == dnnl_success) status = tr__dnnl_convolution(desc, engine, &c, x, weight, bias, y, forward, attr);
    if (status == dnnl_success) {
        tr__dnnl_desc_free(weight);
        status = tr__dnnl_argument(*desc, p->argument[WEIGHT], weight);
    }
    if (forward) dnnl_primitive_desc_destroy(forward);
    return status;
}

/* Between a plain weight and the layout of a convolution's. */
typedef struct reordering {
    const request *r;
    const tr__primitive *convolution;
} reordering;

static dnnl_status_t make_reorder(tr__primitive *p, dnnl_engine_t engine, const void *user, dnnl_primitive_attr_t attr,
    dnnl_primitive_desc_t *desc)
{
    const reordering *o = user;
    bool back = p->key.kind == TR__DNNL_FROM_CONV_WEIGHT;
    p->parts = 2;
    p->argument[0] = DNNL_ARG_FROM;
    p->argument[1] = DNNL_ARG_TO;
    dnnl_status_t status = describe_weight(&p->desc[back], o->r, true);
    if (status == dnnl_success) status = tr__dnnl_desc_copy(&p->desc[!back], TR__DNNL_GIVEN(&o->convolution->desc[WEIGHT]));
    return status == dnnl_success ? tr__dnnl_reorder(desc, engine, &p->desc[0], &p->desc[1], attr) : status;
}

/* A convolution of some of the images, and the way of its weight. */
typedef struct primitives {
    tr__primitive *convolution, *reorder;
    const void *weight; /* in the convolution's layout, where it is an input */
} primitives;

static tr_status get_primitives(const request *r, int64_t images, primitives *out)
{
    request part = *r;
    part.s.n = images;
    const tr__conv2d *s = &part.s;
    tr__primitive_key key = {
        .kind = r->kind,
        .number = {s->n, s->c, s->h, s->w, s->k, s->kh, s->kw, s->oh, s->ow, s->groups, s->stride, s->padding, s->dilation,
            r->with_bias, r->dtype},
    };
    TR__TRY(tr__primitive_get("conv2d", &key, make_convolution, &part, &out->convolution));
    key.number[TR__PRIMITIVE_NUMBERS - 1] = key.kind;
    key.kind = r->kind == TR__DNNL_CONV_GRAD_WEIGHT ? TR__DNNL_FROM_CONV_WEIGHT : TR__DNNL_TO_CONV_WEIGHT;
    return tr__primitive_get("conv2d", &key, make_reorder, &(reordering){&part, out->convolution}, &out->reorder);
}

/* ---- Running -------------------------------------------------------------------------------------------------------- */

typedef struct tasks {
    request r;
    int64_t part;       /* images in a task, but for the last */
    primitives primitives[2]; /* of a full task, and of the last one */
    char *x, *y;        /* or their gradients */
    const float *bias;
    float *sums;        /* [tasks, weight and bias]: what each adds to the gradients */
    int64_t sum;        /* numbers in one of them */
    int index;          /* of the device */
    atomic_int status;  /* of oneDNN */
} tasks;

static int64_t weight_numbers(const tr__conv2d *s)
{
    return s->k * (s->c / s->groups) * s->kh * s->kw;
}

static int64_t task_count(const tasks *t)
{
    return (t->r.s.n + t->part - 1) / t->part;
}

/* Multiplications and additions for one image. */
static int64_t work_per_image(const tr__conv2d *s)
{
    return 2 * s->oh * s->ow * weight_numbers(s) + 1;
}

static int64_t part_of(const request *r)
{
    const tr__conv2d *s = &r->s;
    bool sums = r->kind == TR__DNNL_CONV_GRAD_WEIGHT;
    int64_t part = ((sums ? SUM_WORK : TASK_WORK) + work_per_image(s) - 1) / work_per_image(s), parts = s->n;
    if (sums) {
        int64_t most = SUM_BYTES / (weight_numbers(s) * (int64_t)sizeof(float) + 1);
        parts = most < 1 ? 1 : most < SUM_PARTS ? most : SUM_PARTS;
    }
    int64_t least = (s->n + parts - 1) / parts;
    return part < least ? least : part < s->n ? part : s->n;
}

/* The gradient of the weight in oneDNN's layout, and from there to its place among the sums. */
static dnnl_status_t run_sum(const tasks *t, const primitives *p, const char *x, const char *y, float *sum)
{
    size_t bytes = tr__dnnl_desc_bytes(&p->convolution->desc[WEIGHT]);
    void *weight = tr__cpu_alloc(t->index, bytes);
    if (!weight) return dnnl_out_of_memory;
    float *bias = t->r.with_bias ? sum + weight_numbers(&t->r.s) : NULL;
    dnnl_status_t status = tr__primitive_run(p->convolution, (const void *[]){x, weight, y, bias}, t->index);
    if (status == dnnl_success) status = tr__primitive_run(p->reorder, (const void *[]){weight, sum}, t->index);
    tr__cpu_free(t->index, weight, bytes);
    return status;
}

static void run_tasks(void *arg, int64_t begin, int64_t end)
{
    tasks *t = arg;
    const tr__conv2d *s = &t->r.s;
    int threads = tr__onednn_enter();
    for (int64_t task = begin; task < end; task++) {
        const primitives *p = &t->primitives[task == task_count(t) - 1];
        int64_t first = task * t->part * (int64_t)tr_dtype_size(t->r.dtype);
        char *x = t->x + first * s->c * s->h * s->w, *y = t->y + first * s->k * s->oh * s->ow;
        dnnl_status_t status = t->sums ? run_sum(t, p, x, y, t->sums + task * t->sum)
                                       : tr__primitive_run(p->convolution, (const void *[]){x, p->weight, y, t->bias}, t->index);
        if (status != dnnl_success) atomic_store(&t->status, (int)status);
    }
    tr__onednn_leave(threads);
}

static tr_status run_all(tasks *t, tr__pool *pool)
{
    tr__pool_for(pool, task_count(t), 1, run_tasks, t);
    return tr__onednn_fail((dnnl_status_t)t->status, "conv2d");
}

/* ---- From tensors ------------------------------------------------------------------------------------------------------ */

/* Memory for numbers, in the innermost scope. */
static tr_tensor *numbers(const tr_tensor *beside, size_t bytes)
{
    return tr__tensor_new(TR_SHAPE((int64_t)(bytes / sizeof(float)) + 1), TR_F32, tr__device_of(beside));
}

static tr_status bring_weight(const tasks *t, tr_tensor *weight, primitives *p)
{
    tr_tensor *memory = numbers(weight, tr__dnnl_desc_bytes(&p->convolution->desc[WEIGHT]));
    TR__TRY(tr_status_of(memory));
    p->weight = tr__ptr(memory);
    int threads = tr__onednn_enter();
    dnnl_status_t status = tr__primitive_run(p->reorder, (const void *[]){tr__ptr(weight), p->weight}, t->index);
    tr__onednn_leave(threads);
    return tr__onednn_fail(status, "conv2d");
}

/* Forward, and the gradient of x: from images and weight to images. */
static tr_status to_images(tasks *t, tr_tensor *from, tr_tensor *weight, tr_tensor *bias, tr_tensor *out)
{
    tr_tensor *source = tr__staged_images(from, t->r.dtype, true), *result = tr__staged_images(out, t->r.dtype, false);
    TR__TRY_ALL(source, result);
    weight = tr__staged(weight, TR_F32, NULL, true);
    TR__TRY(tr_status_of(weight));
    if (bias) {
        bias = tr__staged(bias, TR_F32, NULL, true);
        TR__TRY(tr_status_of(bias));
        t->bias = tr__ptr(bias);
    }
    for (int i = 0; i < 2; i++) {
        if (i && t->primitives[1].convolution == t->primitives[0].convolution) t->primitives[1].weight = t->primitives[0].weight;
        else TR__TRY(bring_weight(t, weight, &t->primitives[i]));
    }
    bool forward = t->r.kind == TR__DNNL_CONV_FORWARD;
    t->x = tr__ptr(forward ? source : result);
    t->y = tr__ptr(forward ? result : source);
    TR__TRY(run_all(t, tr__pool_of(from)));
    return tr__unstage(out, result);
}

typedef struct adding {
    const tasks *t;
    int64_t first; /* in each of the sums */
    float *to;
    bool accumulate;
} adding;

static void add_sums(void *arg, int64_t begin, int64_t end)
{
    const adding *a = arg;
    int64_t count = task_count(a->t);
    for (int64_t i = begin; i < end; i++) {
        float sum = a->accumulate ? a->to[i] : 0;
        for (int64_t task = 0; task < count; task++) sum += a->t->sums[task * a->t->sum + a->first + i];
        a->to[i] = sum;
    }
}

/* The sums of all tasks, in order, onto a gradient. */
static tr_status sum_up(const tasks *t, int64_t first, tr_tensor *to, bool accumulate)
{
    tr_tensor *plain = tr__staged(to, TR_F32, NULL, accumulate);
    TR__TRY(tr_status_of(plain));
    adding a = {t, first, tr__ptr(plain), accumulate};
    tr__pool_for(tr__pool_of(to), tr__numel(to->shape), TR__GRAIN, add_sums, &a);
    return tr__unstage(to, plain);
}

static tr_status to_weight(tasks *t, const tr_op_call *call)
{
    const tr_conv2d_attrs *attrs = call->attrs;
    tr_tensor *y = tr__staged_images(call->inputs[0], TR_F32, true), *x = tr__staged_images(call->inputs[1], TR_F32, true);
    TR__TRY_ALL(x, y);
    int64_t weights = weight_numbers(&t->r.s);
    t->sum = weights + t->r.s.k;
    tr_tensor *sums = numbers(x, sizeof(float) * (size_t)(task_count(t) * t->sum));
    TR__TRY(tr_status_of(sums));
    t->x = tr__ptr(x);
    t->y = tr__ptr(y);
    t->sums = tr__ptr(sums);
    TR__TRY(run_all(t, tr__pool_of(x)));
    TR__TRY(sum_up(t, 0, call->outputs[0], attrs->accumulate));
    return call->outputs[1] ? sum_up(t, weights, call->outputs[1], attrs->accumulate_bias) : TR_OK;
}

tr_status tr__onednn_conv(tr_op_call *call)
{
    /* f64, the gradient of a bias alone, and nothing to do are left to the reference. */
    const tr_tensor *out = call->outputs[0];
    if (!out || out->dtype == TR_F64) return TR_DECLINED;
    tr__conv2d s = tr__conv2d_of(call);
    if (s.n == 0 || s.c == 0 || s.k == 0) return TR_DECLINED;
    bool forward = call->op == tr__op(conv2d), input = call->op == tr__op(conv2d_grad_input);
    tr_device device = tr__device_of(out);
    tasks t = {.r.s = s, .index = device.index};
    t.r.kind = forward ? TR__DNNL_CONV_FORWARD : input ? TR__DNNL_CONV_GRAD_INPUT : TR__DNNL_CONV_GRAD_WEIGHT;
    bool has_bf16 = tr__onednn_has_matrix_units() || (tr__uses_bf16_dot() && tr__onednn_has(dnnl_cpu_isa_avx512_core_bf16));
    t.r.dtype = (forward || input) && out->dtype == TR_BF16 && has_bf16 ? TR_BF16 : TR_F32;
    t.r.with_bias = forward ? call->inputs[2] != NULL : !input && call->outputs[1] != NULL;
    t.part = part_of(&t.r);
    TR_SCOPE;
    int threads = tr__onednn_enter(); /* a primitive remembers how many threads it was made for */
    tr_status status = get_primitives(&t.r, t.part, &t.primitives[0]);
    if (status == TR_OK) status = get_primitives(&t.r, s.n - (task_count(&t) - 1) * t.part, &t.primitives[1]);
    tr__onednn_leave(threads);
    if (status == TR_OK)
        status = forward || input ? to_images(&t, call->inputs[0], call->inputs[1], forward ? call->inputs[2] : NULL,
                                        call->outputs[0])
                                  : to_weight(&t, call);
    for (int i = 0; i < 2; i++) {
        tr__primitive_unref(t.primitives[i].convolution);
        tr__primitive_unref(t.primitives[i].reorder);
    }
    return status;
}
