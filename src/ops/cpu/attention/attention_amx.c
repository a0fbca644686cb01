#define TILE_VNNI /* and for compilers that know AMX, the build defines TILE_AMX */
#include "ops/cpu/attention/attention.h"
#include "ops/cpu/attention/forward.h"
#include "ops/cpu/attention/backward.h"

const tr__attention_kernels tr__attention_amx = {forward_scratch, forward_head, backward_scratch, backward_head};
