#define TILE_VNNI /* and for compilers that know AMX, the build defines TILE_AMX */
#include "ops/cpu/gemm/blocked.h"

bool tr__gemm_amx(const tr__gemm_task *task) { return run_gemm(task); }
