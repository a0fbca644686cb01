/*
 * NCCL, opened when the first group needs it: a machine without it pays nothing and gets an error that says what is
 * missing. GPUs are the CUDA plug-in's (trireme/device.h): memory, streams and events come from its table.
 */
#ifndef TR_COMM_BACKEND_NCCL_H
#define TR_COMM_BACKEND_NCCL_H

#include "comm/backend/backend.h"

/* How a message ends that says why NCCL cannot be used here. */
#define TR__NCCL_INSTEAD "join with .backend = \"native\", which needs no GPU"

extern const tr__backend tr__nccl_backend;

#endif
