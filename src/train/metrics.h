/* What a trainer does with metrics besides adding rows: they come back from a checkpoint, and go to a file while it
 * fits. */
#ifndef TR_TRAIN_METRICS_H
#define TR_TRAIN_METRICS_H

#include "base/object.h"

#include <trireme/train.h>

/* Without rows, and without a file. */
tr_metrics *tr__metrics_new(void);
/* Takes the rows of a checkpoint's history, in place of its own, also in the file; none where history is NULL.
 * checkpoint: its path, for messages. */
tr_status tr__metrics_restore(tr_metrics *metrics, const tr_tensor_list *history, const char *checkpoint);
/* Writes all rows into a file, whole or not at all, and those to come behind them. item, accuracy: as
 * tr_metrics_options has them. */
tr_status tr__metrics_open_file(tr_metrics *metrics, const char *path, const char *item, bool accuracy);
void tr__metrics_close_file(tr_metrics *metrics);
/* Gives the row of a step, if it is the last one, a score that was measured later. */
tr_status tr__metrics_set_score(tr_metrics *metrics, int64_t step, const tr_score *score);

#endif
