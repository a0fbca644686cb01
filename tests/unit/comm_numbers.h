/* What ranks send in tests, in every type, and what reductions make of it. */
#ifndef COMM_NUMBERS_H
#define COMM_NUMBERS_H

#include "numbers.h"

#include <trireme/comm.h>

/* Element i of a rank's input: exact in every type, 0, 1 or 2. */
double sample(tr_dtype dtype, int number, int64_t i);
/* Does the operation exist for the type? */
bool op_exists(tr_dtype dtype, tr_reduce_op op);
/* What a reduction makes of all ranks' samples. */
double reduced(tr_dtype dtype, tr_reduce_op op, int world, int64_t i);
bool near_enough(tr_dtype dtype, double a, double b);

#endif
