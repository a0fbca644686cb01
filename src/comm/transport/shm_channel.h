/* A ring of bytes in shared memory, from the rank that made it to one peer. One of sends and receives
 * is made with the first message, one of RPC at the start. */
#ifndef TR_COMM_TRANSPORT_SHM_CHANNEL_H
#define TR_COMM_TRANSPORT_SHM_CHANNEL_H

#include "comm/transport/shm.h"

#include <sys/uio.h>

enum { TR__SHM_STREAM = 256 << 10 };

struct tr__shm_channel {
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t written; /* bytes since the beginning */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t read;
    _Alignas(TR__CACHE_LINE) _Atomic uint32_t opened;  /* by the peer */
    _Atomic uint32_t closed;                           /* RPC: the peer reads no more, */
    _Atomic uint32_t waits;                            /* or is to ring when it has read something */
    _Atomic uint32_t copied;                           /* RPC: pieces that the writer has copied after it sent them */
    _Alignas(TR__CACHE_LINE) char data[TR__SHM_STREAM];
};

/* Makes our channel to a peer and shows it. */
tr_status tr__shm_channel_open(tr__shm *t, tr__shm_peer *peer, tr__shm_channel **channel);
/* Moves as many bytes as there are, or as there is room for; returns how many. The parts follow each other; *seen is how
 * far the reader was known to be. */
size_t tr__shm_channel_put(tr__shm_channel *channel, uint64_t *seen, const struct iovec *parts, int count);
size_t tr__shm_channel_get(tr__shm_channel *channel, void *to, size_t bytes);
/* Bytes that are there, without taking them. */
void tr__shm_channel_peek(const tr__shm_channel *channel, uint64_t at, void *to, size_t bytes);

#endif
