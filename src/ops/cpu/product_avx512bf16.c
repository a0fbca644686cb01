#define TILE_PAIRS
#include "ops/cpu/product_simd.h"

bool tr__product_avx512bf16(const tr__product_at *at) { return run_product(at); }
