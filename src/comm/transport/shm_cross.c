/*
 * Peers' buffers are read and written where they lie: mapped ones, and private ones where the kernel lets all ranks of the host reach
 * each other's memory (net/endpoint_cross.c).
 *
 * A call may fail on one rank while another still works, and then the program may use its buffers for something else. So
 * whoever crosses over says so first, and then looks whether the other has withdrawn; who withdraws says so first, and then
 * waits until nobody is crossing, but not long for a rank that is stopped in the middle of it. What such a rank reads gets into no
 * result, as every rank looks at the end of a call whether another has withdrawn from it. What it writes cannot be taken back.
 *
 * Of private buffers the kernel looks up every page, which takes longer than a second copy does as long as that stays in a cache that both cores
 * share, and less where they have none in common. Nothing tells which it is, and a virtual machine's cores move, so both ways are
 * tried again and again, and the faster one is taken. A buffer is reached where it lies only if all ranks want that, so ranks that
 * measure otherwise still agree.
 */
#include "base/clock.h"
#include "comm/transport/shm.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 1 << 20,            /* what is copied at a time */
    WITHDRAW_NS = 500000000,    /* the longest that a rank waits for those that cross: one may be stopped */
};

/* ---- Which way ---------------------------------------------------------------------------------------------------- */

enum { TRYING = 2 * TR__SHM_TRIES };

bool tr__shm_tuning_prefers(tr__shm_tuning *tuning)
{
    unsigned turn = tuning->calls++ % TR__SHM_TERM;
    if (turn == 0) tuning->best_ns[0] = tuning->best_ns[1] = INT64_MAX;
    return turn < TRYING ? turn >= TR__SHM_TRIES : tuning->best_ns[1] < tuning->best_ns[0];
}

void tr__shm_tuning_note(tr__shm_tuning *tuning, bool placed, int64_t ns)
{
    bool trying = (tuning->calls - 1) % TR__SHM_TERM < TRYING;
    if (trying && ns < tuning->best_ns[placed]) tuning->best_ns[placed] = ns;
}

/* Moves what is known of a buffer to the front; the one that came longest ago makes room for a new one. */
static tr__shm_buffer *recall(tr__shm *t, const void *buffer, size_t bytes)
{
    tr__shm_buffer known = {.at = buffer, .bytes = bytes};
    int i = 0;
    while (i < TR__SHM_BUFFERS - 1 && (t->buffers[i].at != buffer || t->buffers[i].bytes != bytes)) i++;
    if (t->buffers[i].at == buffer && t->buffers[i].bytes == bytes) known = t->buffers[i];
    memmove(t->buffers + 1, t->buffers, (size_t)i * sizeof *t->buffers);
    t->buffers[0] = known;
    return t->buffers;
}

/* Of a buffer in huge pages the kernel looks up far fewer. Putting it there takes as long as some calls, and the peers wait
 * meanwhile, so that is done for those that come again, as a model's gradients do, and of large ones in several calls. What was
 * measured of either way until then is measured anew when all ranks do so: in the next term. */
void tr__shm_note_private(tr__shm *t, const void *buffer, size_t bytes)
{
    if (bytes < TR__SHM_HUGE || !t->endpoint->crosses || t->crowded) return;
    if (!t->buffers) t->buffers = calloc(TR__SHM_BUFFERS, sizeof *t->buffers);
    if (!t->buffers) return; /* it is only about speed */
    tr__shm_buffer *known = recall(t, buffer, bytes);
    if (known->calls < TR__SHM_HUGE_CALLS) known->calls++;
    if (known->calls < TR__SHM_HUGE_CALLS || known->huge == bytes) return;
    known->huge = tr__pages_collapse((void *)buffer, bytes, known->huge, TR__SHM_HUGE_STEP);
}

/* ---- Crossing ----------------------------------------------------------------------------------------------------- */

tr_status tr__shm_lost(tr__shm *t, const tr__shm_peer *peer, int timeout_ms)
{
    TR__TRY(tr__shm_await_reason(t, timeout_ms));
    return tr__fail(TR_PEER, "rank %d (pid %ld) gave up in the middle of a call", peer->rank, peer->pid);
}

tr_status tr__shm_cross(tr__shm *t, const tr__shm_call *call, int rank)
{
    int first = rank < 0 ? 0 : rank, last = rank < 0 ? t->world_size - 1 : rank;
    atomic_store(&t->control->crossing, 1);
    for (int i = first; i <= last; i++)
        if (i != t->rank && atomic_load(&t->peers[i].control->withdrew)) {
            tr__shm_cross_end(t);
            return tr__shm_lost(t, &t->peers[i], call->timeout_ms);
        }
    return TR_OK;
}

tr_status tr__shm_cross_check(tr__shm *t, const tr__shm_call *call)
{
    atomic_thread_fence(memory_order_acquire); /* after what has been read of the buffers */
    for (int rank = 0; rank < t->world_size; rank++)
        if (atomic_load_explicit(&t->peers[rank].control->withdrew, memory_order_relaxed) == call->sequence)
            return tr__shm_lost(t, &t->peers[rank], call->timeout_ms);
    return TR_OK;
}

/* ---- Copying private memory --------------------------------------------------------------------------------------- */

static bool reads(const tr__shm *t, int rank, uint64_t address)
{
    char byte;
    return tr__endpoint_read(t->endpoint, t->attachment->members[rank], address, 1, &byte) == 0;
}

/* Part of the piece is not there, at the peer or here: no memory is missing that reads. */
static tr_status fault(tr__shm *t, int rank, uint64_t address, size_t bytes, const char *verb, int error)
{
    const tr__shm_peer *peer = &t->peers[rank];
    bool theirs = !reads(t, rank, address) || !reads(t, rank, address + bytes - 1);
    for (size_t at = TR__PAGE; at < bytes && !theirs; at += TR__PAGE) theirs = !reads(t, rank, address + at);
    if (!theirs && verb[0] == 'r')
        return tr__fail_errno(TR_INVALID, error, "rank %d: its own buffer cannot be written to", t->peers[t->rank].rank);
    return tr__fail_errno(TR_PEER, error, "rank %d (pid %ld): %zu bytes of its buffer, at 0x%" PRIx64 ", cannot be %s; is it "
        "freed or unmapped while the call runs?", peer->rank, peer->pid, bytes, address, verb);
}

/* One call of the kernel for each piece, so that a peer that withdraws does not wait for long. */
tr_status tr__shm_copy(tr__shm *t, const tr__shm_call *call, int rank, uint64_t address, size_t bytes, char *to, const char *from)
{
    tr__shm_peer *peer = &t->peers[rank];
    int place = t->attachment->members[rank];
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t piece = bytes - at < PIECE ? bytes - at : PIECE;
        int error = ESRCH;
        if (!atomic_load(&peer->control->withdrew) && !atomic_load(&peer->gone))
            error = to ? tr__endpoint_read(t->endpoint, place, address + at, piece, to + at)
                       : tr__endpoint_write(t->endpoint, place, address + at, piece, from + at);
        if (!error) continue;
        tr__shm_cross_end(t);
        return error == ESRCH ? tr__shm_lost(t, peer, call->timeout_ms)
                              : fault(t, rank, address + at, piece, to ? "read" : "written", error);
    }
    return TR_OK;
}

/* ---- Failing ------------------------------------------------------------------------------------------------------ */

void tr__shm_withdraw(tr__shm *t, const tr__shm_call *call)
{
    int64_t until = tr__now_ns() + WITHDRAW_NS;
    atomic_store(&t->control->withdrew, call->sequence);
    for (int rank = 0; rank < t->world_size; rank++) {
        const tr__shm_peer *peer = &t->peers[rank];
        if (rank == t->rank) continue;
        while (atomic_load(&peer->control->crossing) && !atomic_load(&peer->gone) && tr__now_ns() < until) sched_yield();
    }
}
