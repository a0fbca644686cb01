/* Streams of bytes between two ranks, in shared memory. */
#include "base/futex.h"
#include "comm/transport/shm_channel.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

static tr_status show(tr__shm *t, tr__shm_peer *peer, const tr__shm_channel *channel)
{
    tr__segment segment;
    int fd;
    tr__segment_find(channel, 1, &segment);
    TR__TRY(tr__endpoint_descriptor(peer->link, &segment, &fd));
    tr__shm_message message = {.type = TR__SHM_STREAMS, .id = segment.id, .bytes = segment.bytes};
    TR__TRY(tr__shm_post(t, peer, &message, fd));
    tr__endpoint_kick(t->endpoint);
    return TR_OK;
}

tr_status tr__shm_channel_open(tr__shm *t, tr__shm_peer *peer, tr__shm_channel **channel)
{
    if (*channel) return TR_OK;
    tr__shm_channel *made = tr_shared_alloc(sizeof *made);
    if (!made) return tr__fail_context(TR_NO_MEMORY, "group '%s': a channel to rank %d", t->group, peer->rank);
    tr_status status = show(t, peer, made);
    if (status != TR_OK) {
        tr_shared_free(made);
        return status;
    }
    *channel = made;
    return TR_OK;
}

/* The monitor's: a peer has made a channel to us. */
tr_status tr__shm_channel_came(tr__shm *t, tr__shm_peer *peer, uint64_t id, size_t bytes, int fd)
{
    if (peer->channel_mapping.memory || bytes < sizeof(tr__shm_channel)) {
        if (fd >= 0) close(fd);
        return tr__fail(TR_FORMAT, "rank %d (pid %ld) shows a second channel, or one of %zu bytes", peer->rank, peer->pid, bytes);
    }
    TR__TRY(tr__shm_mapping_open(peer->link, id, bytes, fd, &peer->channel_mapping));
    tr__shm_channel *channel = (tr__shm_channel *)peer->channel_mapping.memory;
    if (!channel) return TR_OK; /* of a rank that has given its group up */
    atomic_store(&channel->opened, 1);
    atomic_store(&peer->inbound, channel);
    if (peer->control) tr__shm_mail(peer->control); /* else when it is known */
    tr__shm_mail(t->control);
    return TR_OK;
}

/* Moves between memory and the ring, around its end. */
static void copy_in(tr__shm_channel *channel, uint64_t at, const char *from, size_t bytes)
{
    size_t place = at % TR__SHM_STREAM, until_end = TR__SHM_STREAM - place;
    size_t first = bytes < until_end ? bytes : until_end;
    memcpy(channel->data + place, from, first);
    memcpy(channel->data, from + first, bytes - first);
}

void tr__shm_channel_peek(const tr__shm_channel *channel, uint64_t at, void *to, size_t bytes)
{
    size_t place = at % TR__SHM_STREAM, until_end = TR__SHM_STREAM - place;
    size_t first = bytes < until_end ? bytes : until_end;
    memcpy(to, channel->data + place, first);
    memcpy((char *)to + first, channel->data, bytes - first);
}

/* A quarter of the ring at a time, so that both sides copy at once. */
static size_t portion(size_t wanted, uint64_t possible)
{
    size_t most = TR__SHM_STREAM / 4;
    if (possible < most) most = (size_t)possible;
    return wanted < most ? wanted : most;
}

/* Bytes that there is room for. Where the reader is, is looked up only when it matters: its line is in its cache. */
static size_t room_for(const tr__shm_channel *channel, uint64_t written, size_t wanted, uint64_t *seen)
{
    if (written - *seen > TR__SHM_STREAM || TR__SHM_STREAM - (written - *seen) < wanted) *seen = atomic_load(&channel->read);
    uint64_t used = written - *seen;
    return used > TR__SHM_STREAM ? 0 : portion(wanted, TR__SHM_STREAM - used); /* a peer's memory is not trusted */
}

size_t tr__shm_channel_put(tr__shm_channel *channel, uint64_t *seen, const struct iovec *parts, int count)
{
    uint64_t written = atomic_load_explicit(&channel->written, memory_order_relaxed);
    size_t all = 0, at = 0;
    for (int i = 0; i < count; i++) all += parts[i].iov_len;
    size_t bytes = room_for(channel, written, all, seen);
    if (!bytes) return 0;
    for (int i = 0; at < bytes; i++) {
        size_t some = bytes - at < parts[i].iov_len ? bytes - at : parts[i].iov_len;
        if (some) copy_in(channel, written + at, parts[i].iov_base, some);
        at += some;
    }
    atomic_store(&channel->written, written + bytes);
    return bytes;
}

size_t tr__shm_channel_get(tr__shm_channel *channel, void *to, size_t bytes)
{
    uint64_t read = atomic_load_explicit(&channel->read, memory_order_relaxed);
    uint64_t there = atomic_load(&channel->written) - read;
    if (there > TR__SHM_STREAM) return 0;
    bytes = portion(bytes, there);
    if (!bytes) return 0;
    tr__shm_channel_peek(channel, read, to, bytes);
    atomic_store(&channel->read, read + bytes);
    return bytes;
}

void tr__shm_mail(tr__shm_control *control)
{
    /* Sequentially consistent, as are what was done before and the sleeper's side: either it sees that, or we see that it
     * sleeps. */
    if (atomic_load(&control->mail_sleepers) == 0) return;
    atomic_fetch_add(&control->mail, 1);
    tr__futex_wake(&control->mail, INT_MAX);
}
