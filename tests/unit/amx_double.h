/*
 * A double of AMX, for x86-64 machines without it that have AVX-512's instructions for bf16: there AMX's instructions raise SIGILL,
 * and a handler does what Intel's manual says of them, with tile registers of each thread. So the compiled kernels themselves run.
 */
#ifndef TRIREME_TEST_AMX_DOUBLE_H
#define TRIREME_TEST_AMX_DOUBLE_H

#include <trireme/tensor.h>

#include <stdbool.h>
#include <stdint.h>

/* Whether AMX can be used from here on, the machine's or the double's. If TRIREME_ISA is amx all kernels
 * have it, for every unit test is linked with --wrap=tr__amx_permitted. */
bool amx_double(void);
/* Set by a test: all kernels have it as by default, without TRIREME_ISA. */
extern bool amx_everywhere;
/* Instructions that the double has done; -1 where the machine does them. */
int64_t amx_double_done(void);
/* The palette of the thread's tiles, 0 for none in use. Only where amx_double() is true. */
int amx_palette(void);
/* Whether TRIREME_ISA is amx and the kernels of the dtype are those of the run without. */
bool amx_leaves_out(tr_dtype dtype);

#endif
