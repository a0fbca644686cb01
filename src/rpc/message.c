#include "rpc/agent.h"

#include "base/memory.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* From the device's allocator, which keeps large blocks at hand. */
static void piece_free(void *memory, void *bytes)
{
    tr__cpu_free(0, memory, (size_t)(uintptr_t)bytes);
}

bool tr__rpc_piece_alloc(tr__rpc_arrived *piece, uint64_t bytes)
{
    char *memory = tr__cpu_alloc(0, bytes ? bytes : 1);
    if (memory)
        *piece = (tr__rpc_arrived){.memory = memory, .bytes = bytes, .release = piece_free,
            .user = (void *)(uintptr_t)(bytes ? bytes : 1)};
    return memory != NULL;
}

tr_status tr__rpc_piece_copy(const tr__rpc_piece *p, void *to)
{
    if (p->tensor) return tr_copy_out(p->tensor, to, p->bytes);
    memcpy(to, p->data, p->bytes);
    return TR_OK;
}

/* What a writer refers to. */
static tr_status copy_pieces(tr__rpc_inbound *m, const tr__rpc_writer *w)
{
    for (int i = 0; i < w->piece_count; i++) {
        const tr__rpc_piece *p = &w->pieces[i];
        if (!tr__rpc_piece_alloc(&m->pieces[i], p->bytes))
            return tr__fail(TR_NO_MEMORY, "rpc: no memory for %llu bytes", (unsigned long long)p->bytes);
        TR__TRY(tr__rpc_piece_copy(p, m->pieces[i].memory));
    }
    return TR_OK;
}

/* To ourselves: as if it had travelled. */
static tr_status send_here(tr_rpc *rpc, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{
    tr__rpc_inbound *m = tr__inbound_new(rpc->rank, frame);
    if (!m) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    memcpy(m->body, w->at, w->used);
    tr_status status = copy_pieces(m, w);
    if (status == TR_OK)
        tr__rpc_arrived_message(rpc, m);
    else
        tr__inbound_free(m);
    return status;
}

tr_status tr__rpc_send(tr_rpc *rpc, int to, tr__rpc_frame frame, const tr__rpc_writer *w)
{
    tr__rpc_link *link = &rpc->links[to];
    frame.magic = TR__RPC_MAGIC;
    frame.version = TR__RPC_VERSION;
    frame.body = (uint32_t)w->used;
    frame.pieces = (uint16_t)w->piece_count;
    frame.payload = w->payload;
    if (to == rpc->rank) return send_here(rpc, &frame, w);
    if (atomic_load(&link->gone)) return tr__fail_stored(link->why);
    bool open = tr__rpc_enter(&rpc->sending);
    tr_status status = open ? tr__link_send(rpc, link, &frame, w) : tr__rpc_has_stopped(rpc);
    tr__rpc_leave(&rpc->sending);
    return status;
}

void tr__rpc_tell(tr_rpc *rpc, int to, tr__rpc_frame frame, const void *bytes, size_t count, const char *text)
{
    TR__KEEP_ERROR;
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    tr__rpc_write_bytes(&w, bytes, count);
    if (text) tr__rpc_write_text(&w, text);
    (void)!tr__rpc_send(rpc, to, frame, &w);
    tr__rpc_writer_end(&w);
}

/* ---- Values on their way ------------------------------------------------------------------------------------------- */

bool tr__rpc_is_hooked(tr_rpc *rpc, const char *function)
{
    return atomic_load(&rpc->has_hooks) && (function[0] != '.' || strcmp(function, TR__RPC_FETCH) == 0);
}

tr_status tr__rpc_outgoing(tr_rpc *rpc, int to, bool is_reply, tr_value *values, int count, tr__rpc_note *note)
{
    if (!rpc->hooks.outgoing) return TR_OK;
    return rpc->hooks.outgoing(rpc->hooks.user, to, is_reply, values, count, note);
}

void tr__rpc_unsent(tr_rpc *rpc, const tr__rpc_note *note)
{
    TR__KEEP_ERROR;
    if (rpc->hooks.unsent) rpc->hooks.unsent(rpc->hooks.user, note);
}

static tr_status give(void *user, tr_rref *ref, unsigned char token[40])
{
    tr__rpc_hand_over *h = user;
    if (!tr__grow(&h->given, h->count, &h->room, sizeof *h->given)) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    TR__TRY(tr__refs_hand_over(h->rpc, ref, h->to, &h->given[h->count]));
    memcpy(token, &h->given[h->count++], sizeof *h->given);
    return TR_OK;
}

void tr__rpc_write_to(tr__rpc_writer *w, tr__rpc_hand_over *h, tr_rpc *rpc, int to)
{
    *h = (tr__rpc_hand_over){.rpc = rpc, .to = to};
    tr__rpc_writer_begin(w);
    w->hand_over = give;
    w->user = h;
}

void tr__rpc_written(tr__rpc_writer *w, tr__rpc_hand_over *h, tr_status sent)
{
    for (size_t i = 0; i < h->count && sent != TR_OK; i++) tr__refs_undo(h->rpc, &h->given[i]);
    free(h->given);
    tr__rpc_writer_end(w);
}

static tr_rref *take_in(void *user, const unsigned char token[40])
{
    const tr__rpc_take_in *t = user;
    tr__rref_token copy;
    memcpy(&copy, token, sizeof copy);
    return tr__refs_take_in(t->rpc, t->from, &copy);
}

tr__rpc_reader tr__rpc_read_from(tr__rpc_inbound *m, tr__rpc_take_in *t)
{
    return (tr__rpc_reader){.at = m->body, .end = m->body + m->frame.body, .pieces = m->pieces,
        .piece_count = m->piece_count, .local_rank = t->rpc->local_rank, .take_in = take_in, .user = t};
}

/* ---- Messages that have come --------------------------------------------------------------------------------------- */

tr__rpc_inbound *tr__inbound_new(int from, const tr__rpc_frame *frame)
{
    size_t pieces = (size_t)frame->pieces * sizeof(tr__rpc_arrived);
    tr__rpc_inbound *m = malloc(sizeof *m + pieces + frame->body + 1);
    if (!m) return NULL;
    *m = (tr__rpc_inbound){.from = from, .frame = *frame, .piece_count = frame->pieces};
    m->pieces = (tr__rpc_arrived *)(m + 1);
    memset(m->pieces, 0, pieces);
    m->body = (unsigned char *)m->pieces + pieces;
    m->body[frame->body] = 0;
    return m;
}

void tr__inbound_free(tr__rpc_inbound *m)
{
    for (int i = 0; i < m->piece_count; i++)
        if (m->pieces[i].memory) m->pieces[i].release(m->pieces[i].memory, m->pieces[i].user);
    free(m);
}
