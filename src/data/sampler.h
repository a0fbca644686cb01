/* What the loader needs of a sampler. */
#ifndef TR_DATA_SAMPLER_H
#define TR_DATA_SAMPLER_H

#include "base/object.h"

#include <trireme/data.h>

/* The number of samples that it draws from. */
int64_t tr__sampler_count(const tr_sampler *sampler);
/* The ranks that divide an epoch, and which of them this one is. */
typedef struct tr__sampler_ranks {
    tr_group *group; /* borrowed; NULL: rank and world size were given as numbers, or this process is alone */
    int rank, world_size;
} tr__sampler_ranks;
tr__sampler_ranks tr__sampler_ranks_of(const tr_sampler *sampler);
/* The epoch that the program set last, and how often it has set one. */
int64_t tr__sampler_epoch(const tr_sampler *sampler, int64_t *times_set);
/* As tr_sampler_indices(), of another epoch than the sampler's own. */
tr_status tr__sampler_draw(const tr_sampler *sampler, int64_t epoch, int64_t *out);

#endif
