#define TABLE tr__simd_avx512
#include "ops/cpu/simd/kernels/table.h"
