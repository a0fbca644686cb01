/* All SIMD kernels, and their table: TABLE is its name. */
#include "ops/cpu/simd/kernels/tables.h"
#include "ops/cpu/simd/kernels/batch_norm.h"
#include "ops/cpu/simd/kernels/cast.h"
#include "ops/cpu/simd/kernels/compare.h"
#include "ops/cpu/simd/kernels/dropout.h"
#include "ops/cpu/simd/kernels/elementwise.h"
#include "ops/cpu/simd/kernels/embedding.h"
#include "ops/cpu/simd/kernels/norm.h"
#include "ops/cpu/simd/kernels/pool.h"
#include "ops/cpu/simd/kernels/reduce.h"
#include "ops/cpu/simd/kernels/softmax.h"

#define SIMD_AS(name, kernel) [TR__OP_##name] = kernel##_kernel,
#define SIMD(name) SIMD_AS(name, name)

const tr__kernel TABLE[TR__OP_COUNT] = {
#include "ops/cpu/simd/kernels/list.h"
};
