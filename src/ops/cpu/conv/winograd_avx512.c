#include "ops/cpu/conv/winograd_tiles.h"

const tr__winograd_kernels tr__winograd_avx512 = {convolve, grad_weight};
