/* The README's program, where each rank also says from which seeds it draws its samples. */
#include <trireme/trireme.h>

#include <inttypes.h>
#include <stdio.h>

static uint64_t said(uint64_t seed)
{
    printf("seed %" PRIu64 "\n", seed);
    return seed;
}

#undef tr_randn
#define tr_randn(seed, ...) tr_randn_with(said(seed), TR__TENSOR(__VA_ARGS__))
#include "readme.c"
