/* What norms over batches share, whoever computes the statistics. */
#ifndef TR_OPS_BATCH_NORM_H
#define TR_OPS_BATCH_NORM_H

#include "ops/op.h"

#include <trireme/ops.h>

/* Are eps, momentum and the running statistics sound? */
tr_status tr__batch_norm_check(const tr_batch_norm_op_options *options);
/* eps, with its default. */
double tr__batch_norm_eps(const tr_batch_norm_op_options *options);
/* Moves the running statistics, if there are any, towards those of a batch of so many numbers in each channel. batches: i64 [],
 * which counts them; or NULL. */
tr_status tr__batch_norm_move(const tr_batch_norm_op_options *options, tr_tensor *mean, tr_tensor *var, double numbers,
    tr_tensor *batches);
tr_status tr__batch_norm_count(tr_tensor *batches);
/* The options' residual and ReLU, of a norm y that has neither yet. */
tr_tensor *tr__batch_norm_activate(const tr_batch_norm_op_options *options, tr_tensor *y);
/* tr_batch_norm_op_with(), which counts batches where it is in training. */
tr_tensor *tr__batch_norm(const tr_batch_norm_op_options *options, tr_tensor *batches);

#endif
