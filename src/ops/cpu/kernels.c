/* The SIMD kernels of the CPU: none is listed for an op whose reference serves. */
#include "ops/op.h"

const tr__kernel tr__cpu_kernels[TR__OP_COUNT] = {NULL};
