/* Random initialization. A tensor's values depend on its seed alone, so every rank and every machine makes the same. */
#include "nn/module.h"

#include "base/rng.h"
#include "tensor/random.h"

#include <math.h>

uint64_t tr_next_seed(void)
{
    /* Far from the small numbers that programs give; of one in 2^64, which would be none, the next is taken. */
    uint64_t seed;
    do seed = tr__mix(0x74726972656d6521u, tr__seeds_next());
    while (seed == 0);
    return seed;
}

uint64_t tr__seed_of(const void *options, uint64_t seed)
{
    return seed || tr_given(options, "seed") ? seed : tr_next_seed();
}

static tr_tensor *fresh(tr_shape shape, tr_dtype dtype, tr__distribution distribution, uint64_t seed, double scale,
    double shift)
{
    if (!tr_dtype_is_float(dtype))
        return tr_tensor_fail(TR_DTYPE, "parameters are floats, not %s", tr_dtype_name(dtype));
    tr_tensor *t = tr_empty(shape, .dtype = dtype);
    if (tr__bad(t)) return t;
    tr_status status = tr__fill_random(t, distribution, seed, (float)scale, (float)shift);
    return status == TR_OK ? t : tr__tensor_failed();
}

tr_tensor *tr__init_normal(tr_shape shape, tr_dtype dtype, uint64_t seed, double std)
{
    return fresh(shape, dtype, TR__NORMAL, seed, std, 0);
}

tr_tensor *tr__init_uniform(tr_shape shape, tr_dtype dtype, uint64_t seed, double bound)
{
    return fresh(shape, dtype, TR__UNIFORM, seed, 2 * bound, -bound);
}

void tr__init_affine(tr_module *module, const tr__affine_start *s, tr_tensor **weight, tr_tensor **bias)
{
    double bound = 1 / sqrt((double)s->fan_in); /* Kaiming's uniform with a = sqrt(5) */
    uint64_t weight_seed = tr__mix(s->seed, 0), bias_seed = tr__mix(s->seed, 1);
    *weight = tr_module_parameter(module, "weight",
        s->normal ? tr__init_normal(s->weight, s->dtype, weight_seed, s->std)
                  : tr__init_uniform(s->weight, s->dtype, weight_seed, bound));
    if (s->no_bias) return;
    tr_shape out = TR_SHAPE(s->out);
    *bias = tr_module_parameter(module, "bias",
        s->normal ? tr_zeros(out, .dtype = s->dtype) : tr__init_uniform(out, s->dtype, bias_seed, bound));
}
