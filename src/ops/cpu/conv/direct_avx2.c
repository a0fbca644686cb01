#include "ops/cpu/conv/direct_tiles.h"

const tr__direct_kernels tr__direct_avx2 = {WIDTH, TILE_COLUMNS, convolve, grad_weight};
