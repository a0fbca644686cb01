/* The tile of bf16_state.h, rounded. ROUND is the function's name; the including file's instruction set gives the
 * lanes. */
#include "base/half.h"
#include "optim/bf16_state.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* 64-bit lanes, of which Philox's words are the lower halves, and products of those. */
#if defined(__AVX512F__)
enum { LANES = 8 };
#define PRODUCT(a, b) ((lanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
enum { LANES = 4 };
#define PRODUCT(a, b) ((lanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#elif defined(__SSE2__)
enum { LANES = 2 };
#define PRODUCT(a, b) ((lanes)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#else
enum { LANES = 2 };
#define PRODUCT(a, b) (((a) & 0xffffffffu) * ((b) & 0xffffffffu))
#endif
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

enum { HALVES = 8, DRAWN = HALVES * LANES }; /* random halfwords of a call of Philox, and of one for each lane */

/* tr__philox_at(key, 0, counter), and at the LANES - 1 counters behind it. */
static inline void draw(uint64_t key, uint64_t counter, uint16_t out[DRAWN])
{
    const lanes zero = {0}, low = zero + 0xffffffffu, m0 = zero + 0xD2511F53u, m2 = zero + 0xCD9E8D57u;
    lanes at = zero;
    for (int i = 0; i < LANES; i++) at[i] = counter + (uint64_t)i;
    lanes c0 = at & low, c1 = at >> 32, c2 = zero, c3 = zero;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        lanes a = PRODUCT(c0, m0), b = PRODUCT(c2, m2);
        c0 = (b >> 32) ^ c1 ^ k0; /* what stands in upper halves is ignored */
        c2 = (a >> 32) ^ c3 ^ k1;
        c1 = b;
        c3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    lanes first = (c0 & low) | c1 << 32, second = (c2 & low) | c3 << 32;
    uint64_t words[2 * LANES];
    for (int i = 0; i < LANES; i++) {
        words[2 * i] = first[i];
        words[2 * i + 1] = second[i];
    }
    for (int i = 0; i < DRAWN; i++) out[i] = (uint16_t)(words[i / 4] >> (16 * (i % 4)));
}

/* Upwards where the bits that go and the random ones have a carry. Infinity stays, and NaN stays NaN. */
static inline void round_state(uint16_t *restrict to, const float *restrict from, const uint16_t *restrict random,
    uint16_t times, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t bits = tr__f32_to_bits(from[i]), rounded = (bits + (uint16_t)((uint32_t)random[i] * times)) >> 16;
        to[i] = (uint16_t)(from[i] != from[i] ? bits >> 16 | 0x40 : rounded);
    }
}

void ROUND(const tr__rounded *r)
{
    static const uint16_t times[TR__STATES] = {1, 0x9e37, 0x79b9};
    uint16_t random[TR__ROUNDED];
    for (int i = 0; i < r->count; i += DRAWN) draw(r->key, r->counter + (uint64_t)(i / HALVES), random + i);
    for (int k = 0; k < r->states; k++) round_state(r->to[k], r->from[k], random, times[k], r->count);
}
