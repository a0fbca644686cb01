/* All SIMD kernels, and their table: TABLE is its name. */
#include "ops/cpu/simd/kernels/tables.h"
#include "ops/cpu/simd/kernels/batch_norm.h"
#include "ops/cpu/simd/kernels/cast.h"
#include "ops/cpu/simd/kernels/dropout.h"
#include "ops/cpu/simd/kernels/elementwise.h"
#include "ops/cpu/simd/kernels/embedding.h"
#include "ops/cpu/simd/kernels/norm.h"
#include "ops/cpu/simd/kernels/pool.h"
#include "ops/cpu/simd/kernels/reduce.h"
#include "ops/cpu/simd/kernels/softmax.h"

#define SIMD(name) [TR__OP_##name] = name##_kernel,

const tr__kernel TABLE[TR__OP_COUNT] = {
#include "ops/cpu/simd/kernels/list.h"
};
