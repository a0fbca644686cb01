/* Kernel calls that are refused, as a container or a hardened host may do. */
#ifndef TR_TESTS_REFUSALS_H
#define TR_TESTS_REFUSALS_H

#include <stdbool.h>

/* From now on processes cannot read each other's memory for this thread and those that it starts (process_vm_readv fails with
 * EPERM). False when the kernel has no filters. */
bool refuse_cross_memory(void);

#endif
