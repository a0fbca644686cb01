/*
 * Memory of the double, and copies: each device has a range of addresses that the host cannot touch, but while it runs
 * the device's work. An allocation ends where a hole begins; fresh memory holds NaN, and freed memory is a hole again.
 */
#include "cudart.h"

#include <sys/mman.h>
#include <unistd.h>

using namespace tr_emulator;

enum : size_t { PAGE = 4096, HUGE_PAGE = 2 << 20, ALIGN = 256, RANGE = size_t(1) << 36 };

struct allocation {
    size_t bytes;      /* what was asked for */
    char *first_page;
    size_t page_bytes;
};
typedef std::map<char *, allocation> allocations; /* by where they begin */

struct device_memory {
    char *range = nullptr;
    allocations live;
    size_t used = 0;
    bool open = false;
    int users = 0;
};
static device_memory memories[DEVICES];
static allocations pinned;
static size_t limit = size_t(4) << 30;

/* The last allocation that begins at the address or before it; NULL: there is none. */
static const std::pair<char *const, allocation> *before(const allocations &all, const void *address)
{
    auto next = all.upper_bound(static_cast<char *>(const_cast<void *>(address)));
    return next == all.begin() ? nullptr : &*--next;
}

/* Lies all of [memory, memory + bytes) in one of them? */
static bool holds(const allocations &all, const void *memory, size_t bytes)
{
    const auto *found = before(all, memory);
    return found && static_cast<size_t>(static_cast<const char *>(memory) - found->first) + bytes <= found->second.bytes;
}

/* Nobody's device: -1. */
static int device_of(const void *memory)
{
    const auto *at = static_cast<const char *>(memory);
    for (int d = 0; d < DEVICES; d++)
        if (memories[d].range && at >= memories[d].range && at < memories[d].range + RANGE) return d;
    return -1;
}

/* The first hole with a page to spare at its end. Large ones begin at a huge page: to open and close them is then a
 * matter of a few entries in the page table, not of thousands. */
static char *find_hole(const device_memory &m, size_t bytes)
{
    const uintptr_t multiple = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    const auto aligned = [&](char *at) { return at + -reinterpret_cast<uintptr_t>(at) % multiple; };
    char *at = aligned(m.range);
    for (const auto &[start, a] : m.live) {
        if (a.first_page >= at && static_cast<size_t>(a.first_page - at) >= bytes + PAGE) break;
        at = aligned(std::max(at, a.first_page + a.page_bytes + PAGE));
    }
    return at + bytes + PAGE <= m.range + RANGE ? at : nullptr;
}

static void protect(device_memory &m, bool open)
{
    if (m.open == open) return;
    for (const auto &[start, a] : m.live) mprotect(a.first_page, a.page_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    m.open = open;
}

namespace tr_emulator {

void set_memory_limit(size_t bytes) { limit = bytes; }
size_t memory_limit() { return limit; }

location locate(const void *memory, size_t bytes)
{
    const int device = device_of(memory);
    if (device >= 0) return {holds(memories[device].live, memory, bytes) ? where::device : where::nowhere, device};
    return {holds(pinned, memory, bytes) ? where::pinned : where::pageable, -1};
}

void open_memory(unsigned devices)
{
    for (int d = 0; d < DEVICES; d++)
        if (devices >> d & 1) memories[d].users++;
    for (device_memory &m : memories) protect(m, m.users > 0);
}

void leave_memory(unsigned devices)
{
    for (int d = 0; d < DEVICES; d++)
        if (devices >> d & 1) memories[d].users--;
}

void close_idle_memory() { open_memory(0); }

text describe_address(const void *address)
{
    const int device = device_of(address);
    if (device < 0) return print("which is no memory of a device");
    const auto *found = before(memories[device].live, address);
    if (!found) return print("which is not allocated on device %d", device);
    const auto inside = static_cast<size_t>(static_cast<const char *>(address) - found->first);
    const size_t bytes = found->second.bytes;
    return inside < bytes
        ? print("byte %zu of %zu on device %d, whose memory it cannot reach", inside, bytes, device)
        : print("%zu bytes after the end of %zu on device %d", inside - bytes, bytes, device);
}

void describe_host_fault(const void *address)
{
    const text said = print("the host accesses %p: %s\n", address, describe_address(address).at);
    if (device_of(address) >= 0 && write(2, said.at, strlen(said.at)) < 0) return;
}

} /* namespace tr_emulator */

/* ---- Allocations ------------------------------------------------------------------------------------------------- */

DOUBLE(cudaMalloc, (void **memory, size_t bytes), cudaErrorMemoryAllocation, {
    device_memory &m = memories[current_device];
    *memory = nullptr;
    CHECK(refuse_while_capturing());
    watch_faults();
    if (bytes == 0) return cudaSuccess;
    if (!m.range) {
        void *range = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return cudaErrorMemoryAllocation;
        m.range = static_cast<char *>(range);
        madvise(range, RANGE, MADV_HUGEPAGE);
    }
    const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    char *at = bytes > limit || m.used > limit - bytes ? nullptr : find_hole(m, pages);
    if (!at || mprotect(at, pages, PROT_READ | PROT_WRITE)) return cudaErrorMemoryAllocation;
    memset(at, 0xff, pages);
    if (!m.open) mprotect(at, pages, PROT_NONE);
    char *start = at + pages - (bytes + ALIGN - 1) / ALIGN * ALIGN;
    m.live[start] = {bytes, at, pages};
    m.used += bytes;
    *memory = start;
    return cudaSuccess;
})

/* Waits for the device, as the real one does. */
DOUBLE(cudaFree, (void *memory), cudaErrorInvalidValue, {
    const int device = device_of(memory);
    if (!memory) return cudaSuccess;
    if (device < 0) return cudaErrorInvalidValue;
    const cudaError_t refused = refuse_while_capturing();
    const cudaError_t error = refused != cudaSuccess ? refused : wait_for_device(held, device);
    auto found = memories[device].live.find(static_cast<char *>(memory));
    if (found == memories[device].live.end()) return cudaErrorInvalidValue;
    madvise(found->second.first_page, found->second.page_bytes, MADV_DONTNEED);
    mprotect(found->second.first_page, found->second.page_bytes, PROT_NONE);
    memories[device].used -= found->second.bytes;
    memories[device].live.erase(found);
    return error;
})

DOUBLE_ALWAYS(cudaHostAlloc, (void **memory, size_t bytes, unsigned), cudaErrorMemoryAllocation, {
    CHECK(refuse_while_capturing());
    if (posix_memalign(memory, PAGE, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
    memset(*memory, 0xff, bytes);
    pinned[static_cast<char *>(*memory)] = {bytes, nullptr, 0};
    return cudaSuccess;
})

DOUBLE_ALWAYS(cudaFreeHost, (void *memory), cudaErrorUnknown, {
    if (!memory) return cudaSuccess;
    const cudaError_t refused = refuse_while_capturing();
    const cudaError_t error = refused != cudaSuccess ? refused : wait_for_device(held, current_device);
    if (!pinned.erase(static_cast<char *>(memory))) return cudaErrorInvalidValue;
    free(memory);
    return error;
})

DOUBLE(cudaMemGetInfo, (size_t *free, size_t *total), cudaErrorUnknown, {
    *total = limit;
    *free = limit - memories[current_device].used;
    return cudaSuccess;
})

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static bool kind_fits(cudaMemcpyKind kind, location to, location from)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
               from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to.kind == where::nowhere || from.kind == where::nowhere) return false;
    return kind == cudaMemcpyDefault ||
        (to_device == (to.kind == where::device) && from_device == (from.kind == where::device));
}

static unsigned reach_of(location at) { return at.device >= 0 ? 1u << at.device : 0; }

/* Pageable host memory is read before the call returns, and is written before it does; pinned memory when the copy
 * runs. */
static cudaError_t copy(held_lock &held, const char *name, void *to, const void *from, size_t bytes,
    cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
    const location target = locate(to, bytes), source = locate(from, bytes);
    tr_stream *s = stream_of(stream);
    if (bytes == 0) return cudaSuccess;
    if (!s) return cudaErrorInvalidResourceHandle;
    if (!kind_fits(kind, target, source)) return cudaErrorInvalidValue;
    std::shared_ptr<std::string> staged;
    if (source.kind == where::pageable && !s->capture)
        staged = std::make_shared<std::string>(static_cast<const char *>(from), bytes);
    const bool now = !s->capture && (wait || target.kind == where::pageable);
    const auto run = [=] {
        held_lock again(state().lock);
        if (locate(to, bytes).kind != target.kind || locate(from, bytes).kind != source.kind) {
            describe_failure(std::string(name) + " runs after its memory was freed");
            return cudaErrorIllegalAddress;
        }
        again.unlock();
        memmove(to, staged ? staged->data() : from, bytes);
        return cudaSuccess;
    };
    CHECK(put(held, s, {name, run, reach_of(target) | reach_of(source)}));
    return now ? wait_for(held, s) : cudaSuccess;
}

static cudaError_t set_bytes(held_lock &held, void *memory, int value, size_t bytes, cudaStream_t stream)
{
    const location at = locate(memory, bytes);
    tr_stream *s = stream_of(stream);
    if (!s) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (at.kind != where::device && at.kind != where::pinned) return cudaErrorInvalidValue;
    const auto run = [=] {
        memset(memory, value, bytes);
        return cudaSuccess;
    };
    return put(held, s, {"cudaMemsetAsync", run, reach_of(at)});
}

DOUBLE(cudaMemcpy, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind), cudaErrorInvalidValue, {
    return copy(held, "cudaMemcpy", to, from, bytes, kind, nullptr, true);
})

DOUBLE(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
    cudaErrorInvalidValue, { return copy(held, "cudaMemcpyAsync", to, from, bytes, kind, stream, false); })

DOUBLE(cudaMemcpyPeerAsync,
    (void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream),
    cudaErrorInvalidValue, {
    if (bytes && (device_of(to) != to_device || device_of(from) != from_device)) return cudaErrorInvalidValue;
    return copy(held, "cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, stream, false);
})

DOUBLE(cudaMemset, (void *memory, int value, size_t bytes), cudaErrorInvalidValue, {
    CHECK(set_bytes(held, memory, value, bytes, nullptr));
    return wait_for(held, stream_of(nullptr));
})

DOUBLE(cudaMemsetAsync, (void *memory, int value, size_t bytes, cudaStream_t stream), cudaErrorInvalidValue, {
    return set_bytes(held, memory, value, bytes, stream);
})
