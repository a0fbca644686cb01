/* Attention as its kernels see it: attention.cu has those for any call, attention_mma.cu those of tensor cores. */
#ifndef TRIREME_CUDA_ATTENTION_H
#define TRIREME_CUDA_ATTENTION_H

#include "families.h"

#include <map>

/* A [batch, heads, rows, dim] view of memory; lse and masks have other last dimensions. */
struct heads {
    void *data; /* NULL: none */
    int64_t stride[4];
    __host__ __device__ int64_t at(int64_t batch, int64_t head) const { return batch * stride[0] + head * stride[1]; }
};

struct attention {
    tr_dtype dtype;
    int64_t batch, heads_n, queries, keys, dim;
    bool causal;
    double scale;
    heads q, k, v, o, g, dq, dk, dv, mask, lse;
};

/* More shared memory than 48 KB has to be asked for, once for each device. */
template <class K> inline tr_status allow_shared(const job &j, K kernel, size_t bytes)
{
    thread_local std::map<std::pair<int, K>, size_t> allowed;
    size_t &most = allowed[{j.call.index, kernel}];
    if (bytes <= 48 << 10 || bytes <= most) return TR_OK;
    TRY(check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "attention"));
    most = bytes;
    return TR_OK;
}

/* Have tensor cores kernels for the call's dtype, sizes and strides on its device? */
bool fits_tensor_cores(const job &j, const attention &a);
/* By cuDNN, of what fits. TR_DECLINED: it is not there, or has no engine for this. */
tr_status cudnn_attention(const job &j, const attention &a);
tr_status cudnn_attention_grad(const job &j, const attention &a);
/* By the plug-in's own kernels, of what fits. TR_DECLINED: there are too many tiles for a grid. */
tr_status attention_forward_mma(const job &j, const attention &a);
/* delta: [batch * heads, queries] = rowsum(g * o). */
tr_status attention_backward_mma(const job &j, const attention &a, const float *delta);

/* May query i see key j? */
__device__ inline bool may_see(const attention &a, int64_t mask_base, int64_t i, int64_t j)
{
    if (i >= a.queries || j >= a.keys || (a.causal && j > i + a.keys - a.queries)) return false;
    return !a.mask.data || ((const uint8_t *)a.mask.data)[mask_base + i * a.mask.stride[2] + j * a.mask.stride[3]];
}

/* Over the LANES threads of a row. */
template <int LANES, class C> __device__ inline C row_sum(C x)
{
    for (int mask = LANES / 2; mask; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}
template <int LANES, class C> __device__ inline C row_max(C x)
{
    for (int mask = LANES / 2; mask; mask /= 2) {
        C other = __shfl_xor_sync(0xffffffffu, x, mask);
        x = other > x ? other : x;
    }
    return x;
}

#endif
