#include "together.h"

#include <stdio.h>

enum { PATIENCE_MS = 60000 };

tr_status pass_barrier_together(tr_group *group, tr_store *store)
{
    int64_t through, world = tr_world_size(group);
    char all[64];
    tr_status status = tr_barrier(group);
    if (status == TR_OK) status = tr_store_add(store, "through", 1, &through);
    if (status != TR_OK) return status;
    snprintf(all, sizeof all, "all are through, time %d", (int)((through - 1) / world));
    if (through % world == 0) status = tr_store_set(store, all, "", 0);
    return status == TR_OK ? tr_store_wait(store, all, PATIENCE_MS) : status;
}
