/* What the kernels of cross_entropy share. */
#ifndef TR_OPS_CROSS_ENTROPY_H
#define TR_OPS_CROSS_ENTROPY_H

#include "ops/ids.h"

/* With class weights, or of targets that are probabilities: a composition (class_loss.c). */
tr_tensor *tr__composed_cross_entropy(const tr_cross_entropy_options *options);

/* Every target is a class or ignored. */
tr_status tr__cross_entropy_check(const tr_op_call *call);
/* Of cross_entropy_grad: the gradient that arrives at the loss of row r, whose target is given; 0 when that is ignored. */
double tr__cross_entropy_scale(const tr_op_call *call, int64_t r, int64_t target);
/* Makes loss and count of the other outputs, which are done. */
tr_status tr__cross_entropy_finish(const tr_op_call *call);

#endif
