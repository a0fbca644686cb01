#define TABLE tr__simd_generic
#include "ops/cpu/simd/kernels/table.h"
