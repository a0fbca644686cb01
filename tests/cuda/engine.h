/*
 * What the emulator of kernels and the double of the runtime tell each other.
 */
#ifndef TR_TEST_CUDA_ENGINE_H
#define TR_TEST_CUDA_ENGINE_H

namespace tr_emulator {

/* emulator.cc: does the calling thread run a kernel? Faults of memory are caught from the first call on. */
bool in_kernel();
void watch_faults();

/* cudart.cc: what stands at an address, for a message; a thread outside kernels fails to read or write it. Both are
 * called by a signal handler, on the thread that failed. */
const char *describe_address(const void *address);
void describe_host_fault(const void *address);

} /* namespace tr_emulator */

#endif
