#define ROUND tr__round_generic
#include "optim/round.h"

#include "base/half.h"
#include "base/isa.h"
#include "base/rng.h"

/* Which of the library's random numbers these are. */
#define STATE_ROUNDING 0x62663136u

static char *advanced(const void *memory, int64_t elements, size_t size)
{
    return (char *)memory + (size_t)elements * size;
}

static void update_tile(tr__update_kernel kernel, const tr__update *u, int64_t begin, int count)
{
    float wide[TR__STATES][TR__ROUNDED];
    size_t size = tr_dtype_size(u->leaf->dtype);
    tr__update tile = *u;
    tile.count = count;
    tile.parameters = advanced(u->parameters, begin, size);
    tile.gradients = advanced(u->gradients, begin, size);
    tr__rounded r = {.states = u->optimizer->n_states, .count = count, .from = wide,
        .key = tr__mix(STATE_ROUNDING, (uint64_t)u->step), .counter = (uint64_t)(u->place + begin) / HALVES};
    for (int k = 0; k < r.states; k++) {
        r.to[k] = (uint16_t *)u->state[k] + begin;
        for (int i = 0; i < count; i++) wide[k][i] = tr__bf16_to_f32(r.to[k][i]);
        tile.state[k] = wide[k];
    }
    kernel(&tile, 0, count);
    TR__OF_MACHINE(tr__round)(&r);
}

void tr__update_bf16_state(tr__update_kernel kernel, const tr__update *u, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += TR__ROUNDED)
        update_tile(kernel, u, i, (int)(end - i < TR__ROUNDED ? end - i : TR__ROUNDED));
}
