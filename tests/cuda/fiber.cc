#include "fiber.h"

#include <sys/mman.h>

#ifndef __has_feature
#define __has_feature(name) 0 /* g++ says __SANITIZE_…__ instead */
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN(...) __VA_ARGS__
#else
#define ASAN(...)
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define TSAN(...) __VA_ARGS__
#else
#define TSAN(...)
#endif

/* tr_fiber_swap(&save, load): pushes what a call preserves, changes stacks, pops it. */
extern "C" void tr_fiber_swap(void **save, void *load);

#if defined(__x86_64__)
__asm__(R"(
    .text; .globl tr_fiber_swap; .hidden tr_fiber_swap; .type tr_fiber_swap, @function
tr_fiber_swap:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
    .size tr_fiber_swap, .-tr_fiber_swap
)");
enum { SAVED = 8, RETURN = 6 }; /* words: six registers, the return address, and one that aligns the entry's frame */
#elif defined(__aarch64__)
__asm__(R"(
    .text; .globl tr_fiber_swap; .hidden tr_fiber_swap; .type tr_fiber_swap, %function
tr_fiber_swap:
    sub sp, sp, #160
    stp x19, x20, [sp]; stp x21, x22, [sp, #16]; stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]; stp x27, x28, [sp, #64]; stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]; ldp x21, x22, [sp, #16]; ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]; ldp x27, x28, [sp, #64]; ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]; ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size tr_fiber_swap, .-tr_fiber_swap
)");
enum { SAVED = 20, RETURN = 11 };
#else
#error "the emulator of CUDA switches stacks on x86-64 and aarch64"
#endif

namespace tr_emulator {

static constexpr size_t OWNER_BYTES = 64, ENTRY_BYTES = 8 << 10, GUARD_BYTES = 64 << 10;

void fiber_of_thread([[maybe_unused]] fiber *f) { TSAN(f->sanitizer = __tsan_get_current_fiber();) }

bool fiber_make(fiber *f)
{
    /* Enough for a stack that is aligned with its guard below; the rest goes back. */
    const size_t bytes = GUARD_BYTES + 2 * FIBER_BYTES;
    auto *memory = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory == MAP_FAILED) return false;
    const size_t before = -(reinterpret_cast<uintptr_t>(memory) + GUARD_BYTES) % FIBER_BYTES;
    if (before) munmap(memory, before);
    f->stack = memory + before + GUARD_BYTES;
    f->bytes = FIBER_BYTES - OWNER_BYTES;
    munmap(f->stack + FIBER_BYTES, FIBER_BYTES - before);
    mprotect(f->stack - GUARD_BYTES, GUARD_BYTES, PROT_NONE);
    TSAN(f->sanitizer = __tsan_create_fiber(0);)
    return true;
}

void fiber_start(fiber *f, void (*entry)(), void *owner)
{
    auto **words = reinterpret_cast<void **>(f->stack + f->bytes) - SAVED;
    /* The frames of the entry that ran here before have not returned. */
    ASAN(__asan_unpoison_memory_region(f->stack + f->bytes - ENTRY_BYTES, ENTRY_BYTES);)
    for (int i = 0; i < SAVED; i++) words[i] = nullptr;
    words[RETURN] = reinterpret_cast<void *>(entry);
    *reinterpret_cast<void **>(f->stack + FIBER_BYTES - sizeof owner) = owner;
    f->stack_pointer = words;
    f->fake_stack = nullptr;
}

void fiber_free(fiber *f)
{
    fiber_abandon(f);
    TSAN(__tsan_destroy_fiber(f->sanitizer);)
    munmap(f->stack - GUARD_BYTES, GUARD_BYTES + FIBER_BYTES);
}

void fiber_switch(fiber *from, fiber *to)
{
    ASAN(__sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->bytes);)
    TSAN(__tsan_switch_to_fiber(to->sanitizer, 0);)
    tr_fiber_swap(&from->stack_pointer, to->stack_pointer);
    ASAN(__sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);)
}

void fiber_entered([[maybe_unused]] fiber *host)
{
    ASAN(const void *bottom;
        size_t bytes;
        __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
        if (!host->stack) {
            host->stack = static_cast<char *>(const_cast<void *>(bottom));
            host->bytes = bytes;
        })
}

void fiber_abandon([[maybe_unused]] fiber *f) { ASAN(__asan_unpoison_memory_region(f->stack, f->bytes);) }

} /* namespace tr_emulator */
