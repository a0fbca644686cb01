/* Random starts. A tensor's values are a function of its seed alone, so every rank and every machine makes the same. */
#include "nn/module.h"

static tr_dtype drawn_in(tr_dtype dtype)
{
    return dtype == TR_F64 ? TR_F64 : TR_F32;
}

tr_tensor *tr__init_normal(tr_shape shape, tr_dtype dtype, uint64_t seed, double std)
{
    TR_SCOPE;
    tr_tensor *drawn = tr_randn(seed, shape, .dtype = drawn_in(dtype));
    return tr_escape(tr_cast(tr_affine(drawn, std, 0), dtype));
}

tr_tensor *tr__init_uniform(tr_shape shape, tr_dtype dtype, uint64_t seed, double bound)
{
    TR_SCOPE;
    tr_tensor *drawn = tr_rand(seed, shape, .dtype = drawn_in(dtype));
    return tr_escape(tr_cast(tr_affine(drawn, 2 * bound, -bound), dtype));
}
