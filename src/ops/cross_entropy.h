/* What the kernels of cross_entropy share. */
#ifndef TR_OPS_CROSS_ENTROPY_H
#define TR_OPS_CROSS_ENTROPY_H

#include "ops/ids.h"

/* Every target is a class or ignored. */
tr_status tr__cross_entropy_check(const tr_op_call *call);
/* Makes loss and count of lse, which is done. */
tr_status tr__cross_entropy_finish(const tr_op_call *call);

#endif
