/*
 * Convolutions by cuDNN. What a shape's graph comes to is kept as a plan.
 */
#include "conv.h"
#include "cudnn_plan.h"

namespace {

/* All that a plan depends on. */
struct shape {
    int64_t device, kind, dtype, alignment;
    conv_sizes sizes;
};

enum { ID_X = 1, ID_WEIGHT, ID_Y };

descriptor &tensor(cudnn_plan &to, const shape &s, int64_t id, int64_t n, int64_t c, int64_t h, int64_t w)
{
    int64_t dims[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
    return to.tensor(id, cudnn_type_of(s.dtype), dims, strides, s.alignment);
}

descriptor &operation(cudnn_plan &to, const shape &s)
{
    static const struct { int type, alpha, x, weight, y; } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
    const conv_sizes &z = s.sizes;
    const auto &kind = kinds[s.kind];
    int64_t stride[] = {z.stride, z.stride}, padding[] = {z.padding, z.padding}, dilation[] = {z.dilation, z.dilation};
    float one = 1, zero = 0;
    descriptor &how = to.add(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
    how.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2);
    how.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    how.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    how.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    how.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    how.finalize();
    descriptor &op = to.add(kind.type);
    op.set(kind.x, tensor(to, s, ID_X, z.n, z.c, z.h, z.w));
    op.set(kind.weight, tensor(to, s, ID_WEIGHT, z.k, z.c / z.groups, z.kh, z.kw)); /* fewer channels than x: groups */
    op.set(kind.y, tensor(to, s, ID_Y, z.n, z.k, z.oh, z.ow));
    op.set(kind.alpha, CUDNN_TYPE_FLOAT, 1, &one); /* beta and how follow alpha */
    op.set(kind.alpha + 1, CUDNN_TYPE_FLOAT, 1, &zero);
    op.set(kind.alpha + 2, how);
    op.finalize();
    return op;
}

plan_table<shape, cudnn_plan, cudnnHandle_t> &known = *new plan_table<shape, cudnn_plan, cudnnHandle_t>;

} // namespace

bool cudnn_serves(tr_dtype dtype)
{
    return (dtype == TR_F32 || dtype == TR_F16 || dtype == TR_BF16) && cudnn();
}

tr_status cudnn_convolve(const job &j, conv_kind kind, const conv_sizes &s, tr_dtype dtype, void *x, void *weight,
                         void *y)
{
    for (int64_t size : {s.n, s.c, s.h, s.w, s.k, s.kh, s.kw, s.oh, s.ow})
        if (size == 0) return TR_DECLINED;
    if (!cudnn_serves(dtype)) return TR_DECLINED;
    const shape asked = {j.call.index, kind, dtype, alignment_of({x, weight, y}, 16), s};
    bool tf32;
    TRY(wants_tf32(&tf32));
    std::lock_guard<std::mutex> held(known.lock);
    cudnnHandle_t handle;
    cudnn_plan *chosen;
    TRY(known.find(asked, &handle, &chosen, create_cudnn, [&](cudnnHandle_t of, cudnn_plan &made) {
        cudnnStatus_t status = made.make(of, {&operation(made, asked)}, dtype == TR_F32 && !tf32);
        return is_unsupported(status) ? TR_OK : check_cudnn(status, "choosing how to convolve");
    }));
    if (!chosen->execution) return TR_DECLINED;
    int64_t ids[] = {ID_X, ID_WEIGHT, ID_Y};
    void *data[] = {x, weight, y};
    return run_plan(j, handle, *chosen, 3, ids, data);
}
