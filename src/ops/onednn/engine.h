/*
 * How Trireme calls oneDNN: always with one OpenMP thread, from the device's own pool. oneDNN's parallel regions deadlock in
 * a forked child, collapse when a core is busy and blind ThreadSanitizer.
 */
#ifndef TR_OPS_ONEDNN_ENGINE_H
#define TR_OPS_ONEDNN_ENGINE_H

#include "base/object.h"

#include <oneapi/dnnl/dnnl.h>

/* Sets the calling thread's OpenMP threads to one and returns what they were, to be given back: a program's own OpenMP
 * loops on this thread must not notice. Both cost some nanoseconds. */
int tr__onednn_enter(void);
void tr__onednn_leave(int threads);

/* Whether it has kernels for these on this machine: bits, of which later machines have those of earlier ones. */
bool tr__onednn_has(dnnl_cpu_isa_t instructions);

/* What the library of that version would say, as a Trireme failure. what: the call or the op. */
tr_status tr__onednn_fail(dnnl_status_t status, const char *what);

#endif
