/* A trainer's gradients, looked at before they are applied. */
#ifndef TR_TRAIN_GRADIENT_WATCH_H
#define TR_TRAIN_GRADIENT_WATCH_H

#include "train/trainer.h"

/* Is the gradients' norm looked at in the step that is under way? Where backward uses them up, as it does. */
bool tr__gradients_are_watched(const tr_trainer *trainer);
/* said->norm, of the gradients that a step is about to apply, or has applied in backward, and said->own. NaN where they
 * are not looked at: in nine of ten steps without clipping. */
tr_status tr__gradient_norms(const tr_trainer *trainer, tr__said *said);
/*
 * Judges the step's loss and the ranks' norms (trainer->said, of every rank), of which row gets the norm. The same on
 * all ranks:
 *   - where ranks' norms differ, so do the gradients that they have averaged: TR_MISMATCH, and
 * trainer->replicas_differ;
 *   - what is not finite is TR_INVALID;
 *   - a spike, a thousand times the running median, is a warning in the log, or TR_INVALID where .stop_on_spike asks.
 * The last two name the rank and the parameter that it came from.
 */
tr_status tr__gradients_judge(tr_trainer *trainer, tr_metrics_row *row);

#endif
