/* What the loader asks a sampler. */
#ifndef TR_DATA_SAMPLER_H
#define TR_DATA_SAMPLER_H

#include "base/object.h"

#include <trireme/data.h>

/* The samples that it chooses from. */
int64_t tr__sampler_count(const tr_sampler *sampler);

#endif
