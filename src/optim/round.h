/* The tile of bf16_state.h, rounded. ROUND is the function's name; the including file's instruction set gives the
 * lanes. */
#include "base/half.h"
#include "base/philox_lanes.h"
#include "optim/bf16_state.h"

#include <string.h>

enum { HALVES = 8, DRAWN = HALVES * PHILOX_LANES }; /* random halfwords of a call of Philox, and of one for each lane */

/* tr__philox_at(key, 0, counter), and at the PHILOX_LANES - 1 counters behind it. */
static inline void draw(uint64_t key, uint64_t counter, uint16_t out[DRAWN])
{
    const philox_lanes low = (philox_lanes){0} + 0xffffffffu;
    philox_lanes word[4];
    philox_draw(key, 0, counter, word);
    philox_lanes first = (word[0] & low) | word[1] << 32, second = (word[2] & low) | word[3] << 32;
    uint64_t words[2 * PHILOX_LANES];
    for (int i = 0; i < PHILOX_LANES; i++) {
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
