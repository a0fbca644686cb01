/*
 * NCCL and the CUDA runtime, opened when the first group needs them: a machine without them pays nothing and gets an
 * error that says what is missing. nccl*.c stand behind this when the headers were found, else nccl_stub.c.
 */
#ifndef TR_COMM_BACKEND_NCCL_H
#define TR_COMM_BACKEND_NCCL_H

#include "comm/backend/backend.h"

/* How a message ends that says why NCCL cannot be used here. */
#define TR__NCCL_INSTEAD "join with .backend = \"native\", which needs no GPU"

extern const tr__backend tr__nccl_backend;

#endif
