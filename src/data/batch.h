/* Making one batch. */
#ifndef TR_DATA_BATCH_H
#define TR_DATA_BATCH_H

#include "data/dataset.h"

#include <stdatomic.h>

/* What a batch is made of. */
typedef struct tr__recipe {
    tr_dataset *set;
    tr_collate collate; /* NULL: stack */
    void *user;
    tr_device device;
    uint64_t seed;      /* of the epoch */
    const int64_t *indices;
    int64_t count;
    const atomic_bool *stop; /* when it becomes true the batch is given up: TR_CANCELLED */
} tr__recipe;

/* Makes it; on TR_OK the caller has a reference of its own to x and y. */
tr_status tr__batch_make(const tr__recipe *recipe, tr_sample *batch);
/* Moves what was made to a device, where it is not there already, and takes a reference for the caller. */
tr_status tr__batch_keep(const tr_sample *made, tr_device device, tr_sample *batch);

#endif
