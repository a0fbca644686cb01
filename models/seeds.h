/* Seeds of a model's layers, which all come from the model's one. */
#ifndef TRIREME_MODELS_SEEDS_H
#define TRIREME_MODELS_SEEDS_H

#include <trireme/nn.h>

/* The seed in a model's options, or else the thread's next. */
static inline uint64_t tr__model_seed(const void *options, uint64_t seed)
{
    return seed || tr_given(options, "seed") ? seed : tr_next_seed();
}

/* The seed of layer i. */
static inline uint64_t tr__layer_seed(uint64_t model, uint64_t i)
{
    return model * 0x9e3779b97f4a7c15u + i;
}

/* The seed of the next layer, for models that go through one sequence. */
static inline uint64_t tr__next_seed(uint64_t *seed)
{
    return *seed = *seed * 0x9e3779b97f4a7c15u + 1;
}

#endif
