#define TABLE tr__simd_avx2
#include "ops/cpu/simd/kernels/table.h"
