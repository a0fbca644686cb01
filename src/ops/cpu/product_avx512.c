#include "ops/cpu/product_simd.h"

bool tr__product_avx512(const tr__product_at *at) { return run_product(at); }
