/* All SIMD kernels, and their table: TABLE is its name. */
#include "ops/cpu/simd.h"
#include "ops/cpu/simd_batch_norm.h"
#include "ops/cpu/simd_cast.h"
#include "ops/cpu/simd_dropout.h"
#include "ops/cpu/simd_elementwise.h"
#include "ops/cpu/simd_embedding.h"
#include "ops/cpu/simd_norm.h"
#include "ops/cpu/simd_pool.h"
#include "ops/cpu/simd_reduce.h"
#include "ops/cpu/simd_softmax.h"

#define SIMD(name) [TR__OP_##name] = name##_kernel,

const tr__kernel TABLE[TR__OP_COUNT] = {
#include "ops/cpu/simd_list.h"
};
