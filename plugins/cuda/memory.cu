/*
 * Memory of the devices: segments from CUDA are cut into blocks, and what is released stays here for the next one who
 * asks on the same stream. Neighbours that are free merge again. cudaMalloc() waits for the device and takes up to a
 * millisecond; a training asks for the same sizes at each step, so that after the first one nothing is asked of CUDA.
 *
 * TRIREME_CUDA_CACHE=0 makes each block a segment of its own, of just the size that was asked for, so that
 * compute-sanitizer finds the first byte beyond it.
 */
#include "device.h"

#include "graph.h"

#include <map>
#include <mutex>
#include <new>
#include <set>

#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t GRAIN = 512;               /* sizes are multiples of it, and addresses, too */
constexpr size_t SMALL = 1 << 20;           /* below it blocks come from segments of */
constexpr size_t SMALL_SEGMENT = 2 << 20;
constexpr size_t LARGE_SEGMENT = 20 << 20;  /* others from ones of this, */
constexpr size_t LARGE_GRAIN = 2 << 20;     /* or of a multiple of this that has room */

struct block {
    char *at;
    size_t bytes;
    cudaStream_t stream; /* of a free one: where it was released */
    cudaStream_t owner;  /* where the graph was captured whose memory this is; NULL: nobody's */
    block *before, *after; /* in its segment */
    bool free, small;
};

struct by_size { /* of free blocks: the smallest that fits comes first */
    bool operator()(const block *a, const block *b) const
    {
        if (a->small != b->small) return a->small;
        if (a->stream != b->stream) return a->stream < b->stream;
        return a->bytes != b->bytes ? a->bytes < b->bytes : a->at < b->at;
    }
};

struct pool {
    std::mutex lock;
    std::set<block *, by_size> free;
    std::map<void *, block *> used;
    size_t in_use = 0, peak = 0, reserved = 0;
};

/* Never destroyed: a thread may still release memory while the process exits, and the driver may be gone by then. */
pool *const pools = new pool[MOST_DEVICES];

bool caches()
{
    static const bool caches = [] {
        const char *text = getenv("TRIREME_CUDA_CACHE");
        return !text || strcmp(text, "0") != 0;
    }();
    return caches;
}

size_t rounded(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* The rest of a block becomes a free one. */
void cut(pool &p, block *b, size_t bytes)
{
    size_t rest = b->bytes - bytes;
    if (rest < (b->small ? GRAIN : SMALL)) return;
    block *made = new block{b->at + bytes, rest, b->stream, b->owner, b, b->after, true, b->small};
    if (b->after) b->after->before = made;
    b->after = made;
    b->bytes = bytes;
    p.free.insert(made);
}

/* b takes what lies behind it. */
void take_after(block *b)
{
    block *gone = b->after;
    b->bytes += gone->bytes;
    b->after = gone->after;
    if (b->after) b->after->before = b;
    delete gone;
}

/* Keeps a free block for later; it joins its neighbours that are free on the same stream. */
void keep(pool &p, block *b)
{
    if (b->after && b->after->free && b->after->stream == b->stream && b->after->owner == b->owner) {
        p.free.erase(b->after);
        take_after(b);
    }
    if (b->before && b->before->free && b->before->stream == b->stream && b->before->owner == b->owner) {
        b = b->before;
        p.free.erase(b);
        take_after(b);
    }
    try {
        p.free.insert(b);
    } catch (const std::bad_alloc &) { /* it stays in its segment, and serves nobody */
    }
}

/* A free block of at least so many bytes for a stream; NULL: there is none. */
block *find(pool &p, cudaStream_t stream, size_t bytes)
{
    block wanted = {nullptr, bytes, stream, nullptr, nullptr, nullptr, true, bytes <= SMALL};
    auto found = p.free.lower_bound(&wanted);
    if (found == p.free.end() || (*found)->stream != stream || (*found)->small != wanted.small) return nullptr;
    block *b = *found;
    p.free.erase(found);
    return b;
}

tr_status out_of_memory(int index, size_t bytes, const pool &p)
{
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) (void)cudaGetLastError();
    return host->fail(
        TR_NO_MEMORY,
        "cuda:%d has no room for %.1f MB more: tensors hold %.1f MB, %.1f MB are kept for later, and %.1f "
        "of the device's %.1f MB are free: a smaller batch needs less",
        index, (double)bytes / 1e6, (double)p.in_use / 1e6, (double)(p.reserved - p.in_use) / 1e6,
        (double)available / 1e6, (double)total / 1e6);
}

void free_segment(pool &p, block *b)
{
    (void)cudaFree(b->at);
    p.reserved -= b->bytes;
    delete b;
}

/* Whole segments only, with the lock held and the device idle. */
void free_unused(pool &p)
{
    for (auto at = p.free.begin(); at != p.free.end();) {
        block *b = *at;
        if (b->before || b->after || b->owner) {
            ++at;
            continue;
        }
        at = p.free.erase(at);
        free_segment(p, b);
    }
}

tr_status new_segment(int index, pool &p, cudaStream_t stream, size_t bytes, block **out)
{
    bool small = bytes <= SMALL;
    size_t wanted = !caches()                   ? bytes
                    : small                     ? SMALL_SEGMENT
                    : bytes < LARGE_SEGMENT / 2 ? LARGE_SEGMENT
                                                : rounded(bytes, LARGE_GRAIN);
    void *at = nullptr;
    outside_captures now;
    cudaError_t error = cudaMalloc(&at, wanted);
    /* What is kept for other sizes and streams serves again. To wait for the device would break a capture. */
    if (error == cudaErrorMemoryAllocation && !graph_stream(index) && cudaDeviceSynchronize() == cudaSuccess) {
        free_unused(p);
        error = cudaMalloc(&at, wanted);
    }
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return out_of_memory(index, bytes, p);
    }
    if (error != cudaSuccess) return check_cuda(error, "an allocation");
    p.reserved += wanted;
    (void)cudaGetLastError(); /* of a first try */
    *out = new block{(char *)at, wanted, stream, graph_stream(index), nullptr, nullptr, true, small};
    return TR_OK;
}

} // namespace

tr_status memory_allocate(int index, cudaStream_t stream, size_t bytes, void **out)
{
    if (index >= MOST_DEVICES)
        return host->fail(TR_UNSUPPORTED, "cuda:%d: the plug-in serves %d devices", index, MOST_DEVICES);
    pool &p = pools[index];
    std::lock_guard<std::mutex> guard(p.lock);
    if (caches()) bytes = rounded(bytes, GRAIN);
    try {
        block *b = find(p, stream, bytes);
        if (!b) TRY(new_segment(index, p, stream, bytes, &b));
        if (caches()) cut(p, b, bytes);
        b->free = false;
        p.used[b->at] = b;
        p.in_use += b->bytes;
        if (p.in_use > p.peak) p.peak = p.in_use;
        *out = b->at;
        return TR_OK;
    } catch (const std::bad_alloc &) {
        return host->fail(TR_NO_MEMORY, "cuda:%d: no memory of the host's to keep count of the device's", index);
    }
}

void memory_release(int index, cudaStream_t stream, void *memory)
{
    pool &p = pools[index];
    std::lock_guard<std::mutex> guard(p.lock);
    auto found = p.used.find(memory);
    if (found == p.used.end()) return;
    block *b = found->second;
    p.used.erase(found);
    p.in_use -= b->bytes;
    b->free = true;
    if (stream == graph_stream(index)) b->owner = stream; /* the graph's kernels may write there from now on */
    b->stream = b->owner ? b->owner : stream;
    if (!caches()) {
        (void)cudaStreamSynchronize(stream);
        free_segment(p, b);
        return;
    }
    keep(p, b);
}

void memory_move(int index, cudaStream_t from, cudaStream_t to)
{
    pool &p = pools[index];
    std::lock_guard<std::mutex> guard(p.lock);
    for (auto &used : p.used)
        if (used.second->owner == from) used.second->owner = nullptr;
    for (bool small : {true, false}) {
        block first = {nullptr, 0, from, nullptr, nullptr, nullptr, true, small};
        for (auto at = p.free.lower_bound(&first); at != p.free.end() && (*at)->stream == from && (*at)->small == small;
             at = p.free.lower_bound(&first)) {
            block *b = *at;
            p.free.erase(at);
            b->stream = to;
            b->owner = nullptr;
            keep(p, b);
        }
    }
}

bool memory_caches(void)
{
    return caches();
}

void memory_trim(int index)
{
    if (device_enter(index) != TR_OK || cudaDeviceSynchronize() != cudaSuccess) return;
    std::lock_guard<std::mutex> guard(pools[index].lock);
    free_unused(pools[index]);
}

tr_status memory_statistics(int index, tr_device_memory *out)
{
    size_t available = 0, total = 0;
    TRY(device_enter(index));
    TRY(check_cuda(cudaMemGetInfo(&available, &total), "asking for the free memory"));
    pool &p = pools[index];
    std::lock_guard<std::mutex> guard(p.lock);
    out->in_use = (int64_t)p.in_use;
    out->peak = (int64_t)p.peak;
    out->reserved = (int64_t)p.reserved;
    out->available = (int64_t)available;
    return TR_OK;
}

void memory_reset_peak(int index)
{
    pool &p = pools[index];
    std::lock_guard<std::mutex> guard(p.lock);
    p.peak = p.in_use;
}

/* ---- Pinned host memory: by powers of two, kept for later. Pinning takes a millisecond and waits for the device. - */

namespace {
std::mutex pinned_lock;
std::multimap<size_t, void *> &pinned = *new std::multimap<size_t, void *>; /* never destroyed, as the pools */
size_t pinned_bytes;
constexpr size_t MOST_PINNED = (size_t)256 << 20; /* kept */

size_t pinned_size(size_t bytes)
{
    size_t size = 4096;
    while (size < bytes) size *= 2;
    return size;
}
} // namespace

tr_status memory_host_allocate(size_t bytes, void **out)
{
    size_t size = pinned_size(bytes);
    {
        std::lock_guard<std::mutex> guard(pinned_lock);
        auto found = pinned.find(size);
        if (found != pinned.end()) {
            *out = found->second;
            pinned.erase(found);
            pinned_bytes -= size;
            return TR_OK;
        }
    }
    outside_captures now;
    cudaError_t error = cudaHostAlloc(out, size, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return host->fail(TR_NO_MEMORY, "cuda: no %.1f MB of host memory that the device can reach",
                          (double)size / 1e6);
    }
    return check_cuda(error, "an allocation of pinned memory");
}

void memory_host_release(void *memory, size_t bytes)
{
    size_t size = pinned_size(bytes);
    try {
        std::lock_guard<std::mutex> guard(pinned_lock);
        if (pinned_bytes + size <= MOST_PINNED) {
            pinned.emplace(size, memory);
            pinned_bytes += size;
            return;
        }
    } catch (const std::bad_alloc &) { /* it goes back to the system */
    }
    outside_captures now;
    (void)cudaFreeHost(memory);
}
