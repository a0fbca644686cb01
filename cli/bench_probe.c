/*
 * The limit under an all_reduce on one host: ranks map each other's memory, and between two barriers of the barest kind
 * rank r adds slice r of all buffers into slice r of all buffers. No checks, no signatures, no time limits.
 */
#include "bench.h"

#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LINE = 64, SPINS = 2000 };

struct tr__probe {
    int rank, world;
    size_t bytes;      /* of a rank's mapping: a line with its flag, then its buffer */
    uint64_t turn;     /* barriers so far */
    char **memory;     /* [world] */
    float **buffers;   /* [world]: behind the flags */
};

typedef void (*sum_function)(float *const *x, int ranks, int64_t begin, int64_t end);

static void sum_plain(float *const *x, int ranks, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        float sum = x[0][i];
        for (int r = 1; r < ranks; r++) sum += x[r][i];
        for (int r = 0; r < ranks; r++) x[r][i] = sum;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void sum_avx512(float *const *x, int ranks, int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + 64 <= end; i += 64) {
        __m512 sum[4];
        for (int v = 0; v < 4; v++) sum[v] = _mm512_loadu_ps(x[0] + i + 16 * v);
        for (int r = 1; r < ranks; r++)
            for (int v = 0; v < 4; v++) sum[v] = _mm512_add_ps(sum[v], _mm512_loadu_ps(x[r] + i + 16 * v));
        for (int r = 0; r < ranks; r++)
            for (int v = 0; v < 4; v++) _mm512_storeu_ps(x[r] + i + 16 * v, sum[v]);
    }
    sum_plain(x, ranks, i, end);
}

static sum_function find_sum(void)
{
    return __builtin_cpu_supports("avx512f") ? sum_avx512 : sum_plain;
}
#else
static sum_function find_sum(void)
{
    return sum_plain;
}
#endif

static atomic_uint_fast64_t *flag(const tr__probe *p, int rank)
{
    return (atomic_uint_fast64_t *)p->memory[rank];
}

static void meet(tr__probe *p)
{
    atomic_store_explicit(flag(p, p->rank), ++p->turn, memory_order_release);
    for (int rank = 0; rank < p->world; rank++)
        for (int spins = 0; atomic_load_explicit(flag(p, rank), memory_order_acquire) < p->turn; spins++)
            if (spins > SPINS) sched_yield();
}

void tr__probe_run(tr__probe *p, int64_t bytes)
{
    int64_t count = bytes / (int64_t)sizeof(float);
    meet(p);
    find_sum()(p->buffers, p->world, count * p->rank / p->world, count * (p->rank + 1) / p->world);
    meet(p);
}

static tr_status refused(void)
{
    tr__complain(TR__BENCH, "cannot make memory that all ranks can map: %s", strerror(errno));
    return TR_CHILD;
}

/* A rank's memory: its own, or through the descriptor of the process that made it. */
static tr_status map(tr__probe *p, int rank, int fd)
{
    void *memory = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return refused();
    p->memory[rank] = memory;
    p->buffers[rank] = (float *)(p->memory[rank] + LINE);
    return TR_OK;
}

static tr_status exchange(tr__probe *p, tr_group *group, int own)
{
    for (int rank = 0; rank < p->world; rank++) {
        int32_t where[2] = {getpid(), own};
        char path[64];
        TRY(tr_broadcast(group, where, 2, .dtype = TR_I32, .root = rank));
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)where[0], (int)where[1]);
        int fd = rank == p->rank ? own : open(path, O_RDWR | O_CLOEXEC);
        tr_status status = fd < 0 ? refused() : map(p, rank, fd);
        if (fd >= 0 && fd != own) close(fd);
        if (status != TR_OK) return status;
    }
    return tr_barrier(group); /* all have opened what they need */
}

tr_status tr__probe_open(tr_group *group, int64_t most_bytes, tr__probe **probe)
{
    tr__probe *p = calloc(1, sizeof *p);
    if (!p) return refused();
    *probe = p;
    p->rank = tr_rank(group);
    p->world = tr_world_size(group);
    p->bytes = LINE + (size_t)most_bytes;
    p->memory = calloc((size_t)p->world, sizeof *p->memory);
    p->buffers = calloc((size_t)p->world, sizeof *p->buffers);
    int fd = memfd_create("trireme-probe", MFD_CLOEXEC);
    bool room = p->memory && p->buffers && fd >= 0 && ftruncate(fd, (off_t)p->bytes) == 0;
    tr_status status = room ? exchange(p, group, fd) : refused();
    if (fd >= 0) close(fd);
    return status;
}

void tr__probe_close(tr__probe *p)
{
    if (!p) return;
    for (int rank = 0; p->memory && rank < p->world; rank++)
        if (p->memory[rank]) munmap(p->memory[rank], p->bytes);
    free(p->memory);
    free(p->buffers);
    free(p);
}
