#include "ops/cpu/winograd_simd.h"

const tr__winograd_kernels tr__winograd_avx2 = {convolve, grad_weight};
