/* The product kernels that oneDNN offers; each may answer TR__DECLINED. */
#ifndef TR_OPS_ONEDNN_KERNELS_H
#define TR_OPS_ONEDNN_KERNELS_H

#include "ops/product.h"

tr_status tr__onednn_sgemm(const tr__product *p, tr__pool *pool);

#endif
