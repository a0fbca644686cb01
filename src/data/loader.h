/* What evaluation and training need of a loader beyond the public functions. */
#ifndef TR_DATA_LOADER_H
#define TR_DATA_LOADER_H

#include "data/sampler.h"

#include <trireme/data.h>

/* The next batch is the first of the epoch that is under way, or of the next one when none is. */
void tr__loader_rewind(tr_loader *loader);

/* The ranks that divide its epochs. */
tr__sampler_ranks tr__loader_ranks(const tr_loader *loader);

/* Does the program want to stop? Called in the program's thread. */
typedef bool (*tr__stop_wanted)(void *user);
/* From now on tr_loader_next() gives up, with TR_CANCELLED, when the program wants to stop and the workers have begun
 * no sample for five seconds: one of them hangs. The batch stays the next one. wanted NULL: it waits as long as it takes. */
void tr__loader_stop_when(tr_loader *loader, tr__stop_wanted wanted, void *user);

#endif
