/* What a stage of a pipeline does, in which order: pure functions of who it is. */
#ifndef TR_PARALLEL_PIPELINE_SCHEDULE_H
#define TR_PARALLEL_PIPELINE_SCHEDULE_H

#include <trireme/parallel.h>

typedef struct tr__pipeline_action {
    bool backward; /* else a forward */
    int micro;     /* of which micro-batch */
} tr__pipeline_action;

/* Fills in the 2 * micro_batches actions of a stage. */
void tr__pipeline_schedule(tr_pipeline_schedule schedule, int stage, int stages, int micro_batches,
    tr__pipeline_action *out);

#endif
