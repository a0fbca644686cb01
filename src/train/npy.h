/* NumPy's .npy format, whose bytes lie in a file or in an .npz archive. */
#ifndef TR_TRAIN_NPY_H
#define TR_TRAIN_NPY_H

#include "tensor/tensor.h"

/* Bytes that come in order. */
typedef struct tr__npy_source {
    const char *name; /* for messages */
    uint64_t bytes;   /* that have not been read yet */
    /* Reads exactly so many; it is never asked for more than there are, and in the end for all. */
    tr_status (*read)(void *user, void *to, uint64_t bytes);
    void *user;
} tr__npy_source;

/* The tensor, row-major, that the source's bytes are. */
tr_tensor *tr__npy_read(tr__npy_source *source);

/* What stands before t's elements, a multiple of 64 bytes. NumPy has no bf16, which fails. */
enum { TR__NPY_HEADER_MOST = 256 };
tr_status tr__npy_header(const char *name, const tr_tensor *t, char header[TR__NPY_HEADER_MOST], size_t *length);

#endif
