/*
 * Rows of metrics as a checkpoint holds them, in history.safetensors: a tensor [rows] for each column, i64 or f64,
 * named as the field of tr_metrics_row.
 */
#ifndef TR_TRAIN_HISTORY_H
#define TR_TRAIN_HISTORY_H

#include "base/object.h"

#include <trireme/train.h>

enum { TR__MOST_SECONDS = 1000000000 }; /* of a training: 30 years, which still are 64 bits of nanoseconds */

tr_tensor_list *tr__history_list(const tr_metrics_row *rows, int64_t count);
/* The rows of such a list, which the caller frees; TR_FORMAT for another list, and when tr__row_check() refuses a row. */
tr_status tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count);

/* Are its numbers those of a row of metrics that follows one of step `before` (-1: it is the first)? Else TR_INVALID.
 */
tr_status tr__row_check(const tr_metrics_row *row, int64_t before);

#endif
