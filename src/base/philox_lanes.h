/* Philox (rng.h) in the 64-bit lanes of vectors, a draw in each. For files that are compiled once per kind of machine. */
#ifndef TR_BASE_PHILOX_LANES_H
#define TR_BASE_PHILOX_LANES_H

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The products of the lanes' lower halves. */
#if defined(__AVX512F__)
enum { PHILOX_LANES = 8 };
#define PHILOX_PRODUCT(a, b) ((philox_lanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
enum { PHILOX_LANES = 4 };
#define PHILOX_PRODUCT(a, b) ((philox_lanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#elif defined(__SSE2__)
enum { PHILOX_LANES = 2 };
#define PHILOX_PRODUCT(a, b) ((philox_lanes)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#else
enum { PHILOX_LANES = 2 };
#define PHILOX_PRODUCT(a, b) (((a) & 0xffffffffu) * ((b) & 0xffffffffu))
#endif
typedef uint64_t philox_lanes __attribute__((vector_size(8 * PHILOX_LANES)));

/* The words of tr__philox_at(key, high, low + lane) for each lane, in its lower half; the upper ones are undefined. */
static inline void philox_draw(uint64_t key, uint64_t high, uint64_t low, philox_lanes word[4])
{
    const philox_lanes zero = {0}, m0 = zero + 0xD2511F53u, m2 = zero + 0xCD9E8D57u;
    philox_lanes at = zero;
    for (int i = 0; i < PHILOX_LANES; i++) at[i] = low + (uint64_t)i;
    philox_lanes c0 = at, c1 = at >> 32, c2 = zero + high, c3 = zero + (high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        philox_lanes a = PHILOX_PRODUCT(c0, m0), b = PHILOX_PRODUCT(c2, m2);
        c0 = (b >> 32) ^ c1 ^ k0; /* what stands in upper halves is ignored */
        c2 = (a >> 32) ^ c3 ^ k1;
        c1 = b;
        c3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

#endif
