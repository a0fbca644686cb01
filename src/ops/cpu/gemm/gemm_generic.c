#include "ops/cpu/gemm/blocked.h"

bool tr__gemm_generic(const tr__gemm_task *task) { return run_gemm(task); }
