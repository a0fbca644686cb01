#define TILE_VNNI
#include "ops/cpu/gemm/blocked.h"

bool tr__gemm_avx512bf16(const tr__gemm_task *task) { return run_gemm(task); }
