/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC'11), as src/base/rng.h has
 * it. */
#ifndef TRIREME_CUDA_RANDOM_H
#define TRIREME_CUDA_RANDOM_H

#include "numbers.h"

struct philox { uint32_t word[4]; };

/* Four random words for a 64-bit key and a 128-bit counter (high, low). */
__device__ inline philox philox_at(uint64_t key, uint64_t high, uint64_t low)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32), c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return philox{{c0, c1, c2, c3}};
}

/* Mixes a number into a key: separate streams from one seed (the finaliser of splitmix64). */
inline uint64_t mixed(uint64_t key, uint64_t number)
{
    uint64_t z = key + 0x9e3779b97f4a7c15u * (number + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* [0, 1), 24 bits; and (0, 1], whose logarithm is finite. */
__device__ inline float uniform_of(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
__device__ inline float uniform_open(uint32_t word) { return (float)((word >> 8) + 1) * 0x1p-24f; }

#endif
