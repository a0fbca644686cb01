/*
 * Fibers: stacks that one thread of the host switches between, with a guard below each. Switches are told to
 * AddressSanitizer and ThreadSanitizer.
 */
#ifndef TR_TEST_CUDA_FIBER_H
#define TR_TEST_CUDA_FIBER_H

#include <stddef.h>
#include <stdint.h>

namespace tr_emulator {

constexpr size_t FIBER_BYTES = 256 << 10; /* a stack, which begins at a multiple of that */

struct fiber {
    void *stack_pointer = nullptr; /* while it does not run */
    char *stack = nullptr;         /* its lowest usable byte */
    size_t bytes = 0;
    void *fake_stack = nullptr;    /* AddressSanitizer's */
    void *sanitizer = nullptr;     /* ThreadSanitizer's */
};

/* For the thread's own stack: nothing but a place for what a switch saves. */
void fiber_of_thread(fiber *f);
/* A stack on which `entry`, which never returns, runs at the first switch, for `owner`. false: no memory. */
bool fiber_make(fiber *f);
void fiber_start(fiber *f, void (*entry)(), void *owner);
/* Of the fiber that calls it, which stands above its stack: thread_local variables of a shared object are found by a
 * call, which took a third of the time of sanitized kernels. */
inline void *fiber_owner()
{
    const auto inside = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    return *reinterpret_cast<void **>((inside | (FIBER_BYTES - 1)) + 1 - sizeof(void *));
}
void fiber_free(fiber *f);
/* Goes on with `to`; returns when something switches back. */
void fiber_switch(fiber *from, fiber *to);
/* The first call of a fiber's entry. The first of all comes from the thread's own stack, `host`. */
void fiber_entered(fiber *host);
/* What the stack held is given up: it is used again, or freed, without having returned. */
void fiber_abandon(fiber *f);

} /* namespace tr_emulator */

#endif
