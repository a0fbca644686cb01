/* Convolutions as matrix products: of the pixels that each place of an output sees, row of taps by row of taps. */
#ifndef TR_OPS_CPU_CONVOLUTION_PRODUCTS_H
#define TR_OPS_CPU_CONVOLUTION_PRODUCTS_H

#include "ops/conv.h"

/* Whether products are the best for the call, whose sizes are s, on this machine. */
bool tr__convolution_products_wanted(const tr_op_call *call, const tr__conv2d *s);
/* x in dtype, channels-last, with the padding of s around it. */
tr_tensor *tr__convolution_padded(tr_tensor *x, const tr__conv2d *s, tr_dtype dtype);
/* Of a gradient of weights it leaves out that of the bias. */
tr_status tr__convolution_products(const tr_op_call *call, const tr__conv2d *s);

#endif
