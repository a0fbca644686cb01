/* A trainer's replicas, compared on the way. */
#ifndef TR_TRAIN_REPLICA_CHECK_H
#define TR_TRAIN_REPLICA_CHECK_H

#include "train/trainer.h"

/* Is the trainer at a step after which replicas are compared? */
bool tr__replica_check_is_due(const tr_trainer *trainer);
/* Compares parameters, buffers and, where each rank has all of it, the optimizer's state. TR_MISMATCH on every rank,
 * and trainer->replicas_differ, where they differ. Nothing is done where they were compared after this step already, or
 * are never. */
tr_status tr__replica_check(tr_trainer *trainer);

#endif
