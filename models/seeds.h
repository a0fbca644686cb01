/* Seeds of a model's layers, which all come from the model's one. None of them is 0, for which a layer would take its own. */
#ifndef TRIREME_MODELS_SEEDS_H
#define TRIREME_MODELS_SEEDS_H

#include <trireme/nn.h>

/* A model's seed: the given one, or if that is 0 the thread's next. */
static inline uint64_t tr__model_seed(uint64_t given)
{
    return given ? given : tr_next_seed();
}

/* The seed of layer i. */
static inline uint64_t tr__layer_seed(uint64_t model, uint64_t i)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t seed = model * golden + i;
    return seed ? seed : golden;
}

/* The seed of the next layer, for models that go through one sequence. */
static inline uint64_t tr__next_seed(uint64_t *seed)
{
    *seed = *seed * 0x9e3779b97f4a7c15u + 1;
    return *seed ? *seed : (*seed = 1); /* what follows 0 */
}

#endif
