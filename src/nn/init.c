/* Random starts. A tensor's values are a function of its seed alone, so every rank and every machine makes the same. */
#include "nn/module.h"

#include "tensor/random.h"

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
