/*
 * Captured steps, from below: who knows the attributes of a kernel for the next run. A source is a module whose
 * dropouts draw random numbers, or a run of parameters that an optimizer updates at once.
 */
#ifndef TR_AUTOGRAD_CAPTURE_H
#define TR_AUTOGRAD_CAPTURE_H

#include "device/capture.h"

typedef struct tr__live_source {
    void *object;    /* kept as long as the graph */
    int first, last; /* of an optimizer: its parameters that are updated together */
    const struct tr__live_source_type *type;
} tr__live_source;

typedef struct tr__live_source_type {
    /* A digest of what the capture relied on: when it has changed, the step is captured anew. NULL: it relies on
     * nothing. */
    uint64_t (*digest)(const tr__live_source *source);
    /* A run begins, by 1; or the one that was captured does not take place, by -1. NULL: nothing counts runs. */
    void (*count)(const tr__live_source *source, int by);
    /* Changes of a kernel's attributes those that are others in this run. */
    tr_status (*renew)(const tr__live_source *source, void *attrs);
} tr__live_source_type;

/* While the calling thread captures: the number of a source, for tr__capture.source. 0 when it does not, or without
 * memory. */
uint64_t tr__capture_source(const tr__live_source *source);

#endif
