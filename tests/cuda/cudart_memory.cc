/*
 * Memory of the double: each device has a range of addresses that the host cannot touch, but while it runs the device's
 * work. An allocation ends where a hole begins; fresh memory holds NaN, and freed memory is a hole again.
 */
#include "cudart.h"
#include "engine.h"

#include <atomic>
#include <map>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tr_emulator {

enum : size_t { PAGE = 4096, ALIGN = 256, RANGE = size_t(1) << 36 };

struct device_memory {
    char *range = nullptr;
    std::map<char *, size_t> pages; /* live: the first page, bytes of pages */
    std::map<char *, size_t> live;  /* what was asked for */
    size_t used = 0;
    bool open = false;
    int users = 0;
};
static device_memory memories[DEVICES];
static std::map<char *, size_t> pinned;
static std::map<char *, size_t> registered; /* the program's own */
static size_t limit = size_t(4) << 30;

void set_memory_limit(size_t bytes) { limit = bytes; }
size_t memory_limit() { return limit; }
size_t device_bytes_used(int device) { return memories[device].used; }

/* The range that holds all of [memory, memory + bytes). */
static bool holds(const std::map<char *, size_t> &ranges, const void *memory, size_t bytes)
{
    auto *at = static_cast<char *>(const_cast<void *>(memory));
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return false;
    --next;
    return static_cast<size_t>(at - next->first) + bytes <= next->second;
}

location locate(const void *memory, size_t bytes)
{
    const auto *at = static_cast<const char *>(memory);
    for (int d = 0; d < DEVICES; d++) {
        const device_memory &m = memories[d];
        if (m.range && at >= m.range && at < m.range + RANGE)
            return {holds(m.live, memory, bytes) ? where::device : where::nowhere, d};
    }
    const bool is_pinned = holds(pinned, memory, bytes) || holds(registered, memory, bytes);
    return {is_pinned ? where::pinned : where::pageable, -1};
}

/* The first hole with a page to spare at its end. */
static char *find_hole(const device_memory &m, size_t bytes)
{
    char *at = m.range;
    for (const auto &[first, size] : m.pages) {
        if (static_cast<size_t>(first - at) >= bytes + PAGE) break;
        at = first + size + PAGE;
    }
    return at + bytes + PAGE <= m.range + RANGE ? at : nullptr;
}

cudaError_t allocate_device(void **memory, size_t bytes, int device)
{
    device_memory &m = memories[device];
    watch_faults();
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (!m.range) {
        void *range = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return cudaErrorMemoryAllocation;
        m.range = static_cast<char *>(range);
    }
    const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    char *at = bytes > limit || m.used > limit - bytes ? nullptr : find_hole(m, pages);
    if (!at || mprotect(at, pages, PROT_READ | PROT_WRITE)) return cudaErrorMemoryAllocation;
    memset(at, 0xff, pages);
    if (!m.open) mprotect(at, pages, PROT_NONE);
    char *start = at + pages - (bytes + ALIGN - 1) / ALIGN * ALIGN;
    m.pages[at] = pages;
    m.live[start] = bytes;
    m.used += bytes;
    *memory = start;
    return cudaSuccess;
}

cudaError_t free_device(void *memory)
{
    if (!memory) return cudaSuccess;
    for (device_memory &m : memories) {
        auto found = m.live.find(static_cast<char *>(memory));
        if (found == m.live.end()) continue;
        auto pages = --m.pages.upper_bound(found->first);
        madvise(pages->first, pages->second, MADV_DONTNEED);
        mprotect(pages->first, pages->second, PROT_NONE);
        m.used -= found->second;
        m.pages.erase(pages);
        m.live.erase(found);
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

/* ---- Who may touch it -------------------------------------------------------------------------------------------- */

static void protect(device_memory &m, bool open)
{
    if (m.open == open) return;
    for (const auto &[first, size] : m.pages) mprotect(first, size, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    m.open = open;
}

void open_memory(unsigned devices)
{
    for (int d = 0; d < DEVICES; d++) {
        device_memory &m = memories[d];
        if (devices >> d & 1) {
            m.users++;
            protect(m, true);
        } else if (m.users == 0) {
            protect(m, false);
        }
    }
}

void leave_memory(unsigned devices)
{
    for (int d = 0; d < DEVICES; d++)
        if (devices >> d & 1) memories[d].users--;
}

void close_idle_memory()
{
    for (device_memory &m : memories)
        if (m.users == 0) protect(m, false);
}

/* Called by a signal handler on a thread that does not hold the lock; other threads may change the maps, which a
 * test that has failed already must risk. */
const char *describe_address(const void *address)
{
    static thread_local char text[160];
    const auto *at = static_cast<const char *>(address);
    for (int d = 0; d < DEVICES; d++) {
        const device_memory &m = memories[d];
        if (!m.range || at < m.range || at >= m.range + RANGE) continue;
        auto next = m.live.upper_bound(const_cast<char *>(at));
        if (next == m.live.begin()) {
            snprintf(text, sizeof text, "which is not allocated on device %d", d);
            return text;
        }
        --next;
        const auto inside = static_cast<size_t>(at - next->first);
        if (inside < next->second)
            snprintf(text, sizeof text, "byte %zu of %zu on device %d, whose memory it cannot reach", inside,
                next->second, d);
        else snprintf(text, sizeof text, "%zu bytes after the end of %zu on device %d", inside - next->second,
            next->second, d);
        return text;
    }
    return "which is no memory of a device";
}

void describe_host_fault(const void *address)
{
    char text[300];
    if (locate(address, 1).device < 0) return;
    const int n = snprintf(text, sizeof text, "the host accesses %p: %s\n", address, describe_address(address));
    if (write(2, text, static_cast<size_t>(n)) < 0) return;
}

} /* namespace tr_emulator */

/* ---- Host memory ------------------------------------------------------------------------------------------------- */

using namespace tr_emulator;

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    if (call_fails("cudaHostAlloc")) return cudaErrorMemoryAllocation;
    std::lock_guard<std::mutex> held(runtime_lock());
    const cudaError_t error = refuse_while_capturing();
    if (error != cudaSuccess) return error;
    if (posix_memalign(memory, PAGE, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
    memset(*memory, 0xff, bytes);
    pinned[static_cast<char *>(*memory)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return call_fails("cudaMallocHost") ? cudaErrorMemoryAllocation : cudaHostAlloc(memory, bytes, 0);
}

/* Waits for the devices, as the real one does. */
cudaError_t cudaFreeHost(void *memory)
{
    if (call_fails("cudaFreeHost")) return cudaErrorUnknown;
    if (!memory) return cudaSuccess;
    cudaError_t error = cudaDeviceSynchronize();
    std::lock_guard<std::mutex> held(runtime_lock());
    if (!pinned.erase(static_cast<char *>(memory))) return cudaErrorInvalidValue;
    free(memory);
    return error;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    if (call_fails("cudaHostRegister")) return cudaErrorMemoryAllocation;
    std::lock_guard<std::mutex> held(runtime_lock());
    if (locate(memory, 1).kind == where::pinned) return cudaErrorHostMemoryAlreadyRegistered;
    registered[static_cast<char *>(memory)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    if (call_fails("cudaHostUnregister")) return cudaErrorUnknown;
    std::lock_guard<std::mutex> held(runtime_lock());
    return registered.erase(static_cast<char *>(memory)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory)
{
    if (call_fails("cudaPointerGetAttributes")) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> held(runtime_lock());
    const location at = locate(memory, 1);
    auto *address = const_cast<void *>(memory);
    if (at.kind == where::device) *attributes = {cudaMemoryTypeDevice, at.device, address, nullptr};
    else if (at.kind == where::pinned) *attributes = {cudaMemoryTypeHost, 0, address, address};
    else *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
    return cudaSuccess;
}
