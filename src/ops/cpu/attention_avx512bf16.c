#define TILE_PAIRS
#include "ops/cpu/attention.h"
#include "ops/cpu/attention_forward.h"
#include "ops/cpu/attention_backward.h"

const tr__attention_kernels tr__attention_avx512bf16 = {forward_scratch, forward_head, backward_scratch, backward_head};
