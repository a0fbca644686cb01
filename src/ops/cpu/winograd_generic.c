#include "ops/cpu/winograd_simd.h"

const tr__winograd_kernels tr__winograd_generic = {convolve, grad_weight};
