/*
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC'11): random numbers as a pure
 * function of (key, counter), so nothing has to be kept, saved or shared to draw the same ones again.
 */
#ifndef TR_BASE_RNG_H
#define TR_BASE_RNG_H

#include <stdint.h>

typedef struct tr__philox {
    uint32_t word[4];
} tr__philox;

/* Four random words for a 64-bit key and a 128-bit counter (high, low). */
tr__philox tr__philox_at(uint64_t key, uint64_t high, uint64_t low);

/* Mixes a number into a key: separate streams from one seed (the finaliser of splitmix64). */
static inline uint64_t tr__mix(uint64_t key, uint64_t number)
{
    uint64_t z = key + 0x9e3779b97f4a7c15u * (number + 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* [0, 1), 24 bits; and (0, 1], whose logarithm is finite. */
static inline float tr__uniform(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
static inline float tr__uniform_open(uint32_t word) { return (float)((word >> 8) + 1) * 0x1p-24f; }

#endif
