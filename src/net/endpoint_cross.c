/*
 * Cross-memory attach: reading and writing a peer's memory that it has not shared, by process_vm_readv() and its sibling, in a
 * single copy that the kernel makes. It allows that where it would allow a debugger: processes of one user, which can see each
 * other's numbers, unless Yama's ptrace_scope, a seccomp filter or a process that is not dumpable forbids it. So each process
 * tries once, as it joins, and only where all can reach all is it done; then it is alike on all of them.
 *
 * A number may belong to another process by now, if the peer has died. So each process keeps a random nonce in private memory,
 * and whoever reads memory reads that along, in one call, which looks the process up once.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

int tr__endpoint_read(const tr__endpoint *e, int peer, uint64_t from, size_t bytes, void *to)
{
    const tr__endpoint_peer *p = &e->peers[peer];
    uint64_t nonce = 0;
    const struct iovec here[] = {{&nonce, sizeof nonce}, {to, bytes}};
    const struct iovec there[] = {{(void *)(uintptr_t)p->page->nonce_at, sizeof nonce}, {(void *)(uintptr_t)from, bytes}};
    ssize_t got = process_vm_readv((pid_t)p->pid, here, 2, there, 2, 0);
    if (got < 0 && errno != EFAULT) return errno;
    if (got < (ssize_t)sizeof nonce || nonce != p->page->nonce) return ESRCH;
    return got == (ssize_t)(sizeof nonce + bytes) ? 0 : EFAULT;
}

int tr__endpoint_write(const tr__endpoint *e, int peer, uint64_t to, size_t bytes, const void *from)
{
    const struct iovec here = {(void *)from, bytes}, there = {(void *)(uintptr_t)to, bytes};
    ssize_t put = process_vm_writev((pid_t)e->peers[peer].pid, &here, 1, &there, 1, 0);
    if (put < 0) return errno;
    return put == (ssize_t)bytes ? 0 : EFAULT;
}

/* Writing nothing tells whether that call is there at all; who may read may write. */
void tr__endpoint_probe(tr__endpoint *e)
{
    bool all = process_vm_writev(getpid(), NULL, 0, NULL, 0, 0) == 0;
    for (int i = 0; i < e->world_size && all; i++) {
        uint64_t nonce;
        const tr__endpoint_peer *p = &e->peers[i];
        if (i == e->rank) continue;
        all = p->visible && tr__endpoint_read(e, i, p->page->nonce_at, sizeof nonce, &nonce) == 0;
    }
    atomic_store(&e->page->crosses, all);
}

void tr__endpoint_agree(tr__endpoint *e)
{
    e->crosses = true;
    for (int i = 0; i < e->world_size; i++) e->crosses &= atomic_load(&e->peers[i].page->crosses) != 0;
}
