/* Making one batch. */
#ifndef TR_DATA_BATCH_H
#define TR_DATA_BATCH_H

#include "data/dataset.h"
#include "data/skips.h"

#include <stdatomic.h>

/* What a batch is made of. */
typedef struct tr__recipe {
    tr_dataset *set;
    tr_collate collate; /* NULL: stack */
    void *user;
    tr_device device;
    tr_on_bad on_bad;
    uint64_t seed;      /* of the epoch */
    int64_t choice;     /* the sampler draws from the first so many samples of the set */
    const int64_t *indices;
    int64_t count;
    int64_t once;       /* so many at the beginning are not duplicates */
    const atomic_bool *stop; /* when it becomes true the batch is given up: TR_CANCELLED */
    atomic_uint *begun;      /* counts samples, or batches of another process, as they are begun; NULL: not counted */
} tr__recipe;

/* What became of it. Zeroed: nothing. */
typedef struct tr__batch_result {
    tr_sample made;     /* references */
    int64_t *indices;   /* the samples that it holds, when they are not those that were asked for; otherwise NULL */
    int64_t duplicates; /* at its end, replacements for skipped samples among them */
    tr__skips skips;
} tr__batch_result;

/* Makes it. tr__batch_drop() gives back what *batch has, also after a failure, when that is at most the skips. */
tr_status tr__batch_make(const tr__recipe *recipe, tr__batch_result *batch);
void tr__batch_drop(tr__batch_result *batch);
/* Moves what was made to a device, where it is not there already, and takes a reference for the caller. */
tr_status tr__batch_keep(tr_sample *made, tr_device device, tr_sample *batch);

#endif
