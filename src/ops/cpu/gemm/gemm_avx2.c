#include "ops/cpu/gemm/blocked.h"

bool tr__gemm_avx2(const tr__gemm_task *task) { return run_gemm(task); }
