/* Libraries of CUDA's that are opened when they are first needed, so that the plug-in runs without them. */
#ifndef TRIREME_CUDA_LIBRARY_H
#define TRIREME_CUDA_LIBRARY_H

#include "kernel.h"

struct library_function {
    const char *name;
    void *to; /* the pointer to it, to be set */
};

/* Opens a library and sets the pointers, up to the entry whose name is NULL. False: it is not there, or lacks one; a
 * warning says so, and `instead`: what follows from that. */
bool open_library(const char *name, const library_function *functions, const char *instead);

/* Memory of any kind: the largest power of two, up to `most`, that divides all of these addresses. */
inline int64_t alignment_of(std::initializer_list<const void *> addresses, uintptr_t most)
{
    uintptr_t bits = most;
    for (const void *address : addresses) bits |= (uintptr_t)address;
    return (int64_t)(bits & -bits);
}

/* f32 is multiplied in full, or on tensor cores with 10 bits of its fraction, as TRIREME_CUDA_MATMUL asks. */
tr_status wants_tf32(bool *wants);

#endif
