/*
 * Messages to workers of this host, through rings and blocks (ring.h). The receiver maps a block when it sees it first,
 * and its tensors use it in place; when the last of them goes, a flag in the block says so, and the sender uses it again, or
 * gives it back when it has not been used for a while.
 */
#include "rpc/agent.h"
#include "rpc/ring.h"

#include "base/clock.h"
#include "base/thread.h"
#include "comm/futex.h"

#include <stdlib.h>
#include <string.h>

enum { SHOW_MS = 10000, IDLE_MS = 10000 };

typedef struct block { /* of ours */
    struct block *next;
    char *memory;
    uint64_t id;
    size_t bytes; /* without the head */
    bool taken;   /* between being chosen and being sent */
    int64_t used; /* when it was sent last */
} block;

typedef struct mapping { /* of theirs */
    struct mapping *next;
    atomic_int refs;
    tr__shm_mapping memory;
} mapping;

typedef struct waiting_record { /* did not fit */
    struct waiting_record *next;
    size_t bytes;
    unsigned char data[];
} waiting_record;

struct tr__rpc_rings {
    pthread_mutex_t lock; /* for what we send */
    tr__rpc_ring *out;
    waiting_record *first, **last;
    block *blocks;
    /* Under the agent's rings_lock; but for the mappings of blocks only until all is complete: */
    mapping *ring_mapping, *bell_mapping, *mappings;
    tr__rpc_ring *in;
    tr__rpc_bell *bell;  /* theirs */
    uint64_t missing;    /* a block that the next record names, and that has not been shown yet, */
    atomic_bool stalled; /* if this is set; reading goes on when it has */
    _Atomic int64_t stalled_since;
};

/* ---- Mappings ---------------------------------------------------------------------------------------------------- */

static void drop_mapping(mapping *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1) return;
    tr__shm_mapping_close(&m->memory);
    free(m);
}

static mapping *new_mapping(const tr__shm_mapping *memory)
{
    mapping *m = malloc(sizeof *m);
    if (!m) {
        tr__shm_mapping_close(memory);
        return NULL;
    }
    *m = (mapping){.memory = *memory};
    atomic_init(&m->refs, 1);
    return m;
}

static void adopt(tr__rpc_rings *n, int purpose, mapping *m)
{
    if (purpose == TR__RPC_IS_BELL && !n->bell_mapping && m->memory.bytes >= sizeof *n->bell) {
        n->bell_mapping = m;
        n->bell = (tr__rpc_bell *)m->memory.memory;
    } else if (purpose == TR__RPC_IS_RING && !n->ring_mapping && m->memory.bytes >= sizeof *n->in &&
               ((tr__rpc_ring *)m->memory.memory)->magic == TR__RPC_RING_MAGIC &&
               ((tr__rpc_ring *)m->memory.memory)->version == TR__RPC_VERSION) {
        n->ring_mapping = m;
        n->in = (tr__rpc_ring *)m->memory.memory;
    } else if (purpose == TR__RPC_IS_BLOCK && m->memory.bytes >= TR__RPC_BLOCK_HEAD) {
        m->next = n->mappings;
        n->mappings = m;
        if (m->memory.id == n->missing) atomic_store(&n->stalled, false);
    } else {
        drop_mapping(m);
    }
}

void tr__rings_shown(void *user, int rank, int purpose, const tr__shm_mapping *memory)
{
    tr_rpc *rpc = user;
    tr__rpc_rings *n = rpc->links[rank].rings;
    mapping *m = new_mapping(memory);
    if (!m) return; /* who waits for it finds out in time */
    pthread_mutex_lock(&rpc->rings_lock);
    if (n)
        adopt(n, purpose, m);
    else
        drop_mapping(m);
    pthread_cond_broadcast(&rpc->rings_changed);
    pthread_mutex_unlock(&rpc->rings_lock);
    if (n && purpose == TR__RPC_IS_BLOCK) tr__rpc_kick(rpc); /* maybe reading waits for it */
}

static mapping *find_mapping(const tr__rpc_rings *n, uint64_t id)
{
    mapping *m = n->mappings;
    while (m && m->memory.id != id) m = m->next;
    return m;
}

/* Are these blocks mapped? If not, nothing is read here until the first that is missing has been shown. */
static bool all_mapped(tr_rpc *rpc, tr__rpc_link *link, const unsigned char *places, int count)
{
    tr__rpc_rings *n = link->rings;
    pthread_mutex_lock(&rpc->rings_lock);
    for (int i = 0; i < count && !atomic_load(&n->stalled); i++) {
        tr__rpc_place p;
        memcpy(&p, places + (size_t)i * sizeof p, sizeof p);
        if (find_mapping(n, p.segment)) continue;
        n->missing = p.segment;
        atomic_store(&n->stalled_since, tr__now_ns());
        atomic_store(&n->stalled, true);
    }
    bool stalled = atomic_load(&n->stalled);
    pthread_mutex_unlock(&rpc->rings_lock);
    if (stalled) tr__rpc_wake_clock(rpc); /* which does not wait for ever */
    return !stalled;
}

static bool overdue(const tr__rpc_link *link, int64_t now, bool *pending)
{
    const tr__rpc_rings *n = link->rings;
    if (!atomic_load(&n->stalled)) return false;
    *pending = true;
    return now - atomic_load(&n->stalled_since) > SHOW_MS * (int64_t)1000000;
}

/* With a reference; NULL: the sender has just dropped it. */
static mapping *take_mapping(tr_rpc *rpc, const tr__rpc_rings *n, uint64_t id)
{
    pthread_mutex_lock(&rpc->rings_lock);
    mapping *m = find_mapping(n, id);
    if (m) atomic_fetch_add(&m->refs, 1);
    pthread_mutex_unlock(&rpc->rings_lock);
    return m;
}

/* The sender uses the block no more. Tensors of ours that lie in it keep it. */
static void forget_mapping(tr_rpc *rpc, tr__rpc_rings *n, uint64_t id)
{
    pthread_mutex_lock(&rpc->rings_lock);
    mapping **at = &n->mappings;
    while (*at && (*at)->memory.id != id) at = &(*at)->next;
    mapping *m = *at;
    if (m) *at = m->next;
    pthread_mutex_unlock(&rpc->rings_lock);
    drop_mapping(m);
}

static void free_block(block *b)
{
    tr_shared_free(b->memory);
    free(b);
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_link(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_rings *n = calloc(1, sizeof *n);
    if (!n) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a worker");
    pthread_mutex_init(&n->lock, NULL);
    n->last = &n->first;
    pthread_mutex_lock(&rpc->rings_lock);
    link->rings = n;
    link->driver = &tr__rpc_by_rings;
    pthread_mutex_unlock(&rpc->rings_lock);
    n->out = tr_shared_alloc(sizeof *n->out);
    if (!n->out) return TR_NO_MEMORY;
    n->out->magic = TR__RPC_RING_MAGIC;
    n->out->version = TR__RPC_VERSION;
    return TR_OK;
}

tr_status tr__rings_make(tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++)
        if (i != rpc->rank && tr__raw_is_local(rpc->group, i)) TR__TRY(make_link(rpc, &rpc->links[i]));
    return TR_OK;
}

tr_status tr__rings_show(tr_rpc *rpc)
{
    for (int i = 0; i < rpc->world; i++) {
        if (!rpc->links[i].rings) continue;
        TR__TRY(tr__raw_show(rpc->group, i, rpc->bell, TR__RPC_IS_BELL));
        TR__TRY(tr__raw_show(rpc->group, i, rpc->links[i].rings->out, TR__RPC_IS_RING));
    }
    return TR_OK;
}

tr_status tr__rings_complete(tr_rpc *rpc)
{
    int64_t deadline = tr__now_ns() + (int64_t)rpc->timeout_ms * 1000000;
    int missing = -1;
    pthread_mutex_lock(&rpc->rings_lock);
    for (int i = 0; i < rpc->world && missing < 0; i++) {
        tr__rpc_rings *n = rpc->links[i].rings;
        while (n && (!n->in || !n->bell) && missing < 0 && !atomic_load(&rpc->links[i].gone))
            if (!tr__condition_wait(&rpc->rings_changed, &rpc->rings_lock, deadline)) missing = i;
        if (n && (!n->in || !n->bell)) missing = i;
    }
    pthread_mutex_unlock(&rpc->rings_lock);
    return missing < 0 ? TR_OK : tr__fail(TR_TIMEOUT, "rpc: worker %d has not shown its memory", missing);
}

static void free_rings(tr__rpc_link *link)
{
    tr__rpc_rings *n = link->rings;
    for (waiting_record *w = n->first, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    for (block *b = n->blocks, *next; b; b = next) {
        next = b->next;
        free_block(b);
    }
    for (mapping *m = n->mappings, *next; m; m = next) {
        next = m->next;
        drop_mapping(m);
    }
    drop_mapping(n->ring_mapping);
    drop_mapping(n->bell_mapping);
    tr_shared_free(n->out);
    pthread_mutex_destroy(&n->lock);
    free(n);
    link->rings = NULL;
    link->driver = NULL;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Four sizes per octave, so that one is found again. */
static size_t size_of_block(size_t bytes)
{
    size_t step = 4096;
    while (step * 8 < bytes) step *= 2;
    return tr__round_up(bytes, step);
}

static tr__rpc_block_head *head_of(const block *b)
{
    return (tr__rpc_block_head *)b->memory;
}

static block *find_block(tr__rpc_rings *n, size_t size)
{
    block *found = NULL;
    pthread_mutex_lock(&n->lock);
    for (block *b = n->blocks; b && !found; b = b->next)
        if (b->bytes == size && !b->taken && atomic_load(&head_of(b)->busy) == 0) found = b;
    if (found) found->taken = true;
    pthread_mutex_unlock(&n->lock);
    return found;
}

static block *make_block(tr_rpc *rpc, tr__rpc_link *link, size_t size)
{
    block *b = calloc(1, sizeof *b);
    if (b) b->memory = tr_shared_alloc(size + TR__RPC_BLOCK_HEAD);
    tr__segment segment;
    if (!b || !b->memory || !tr__segment_find(b->memory, 1, &segment) ||
        tr__raw_show(rpc->group, link->worker, b->memory, TR__RPC_IS_BLOCK) != TR_OK) {
        if (!b) tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        if (b) free_block(b);
        return NULL;
    }
    b->id = segment.id;
    b->bytes = size;
    b->taken = true;
    pthread_mutex_lock(&link->rings->lock);
    b->next = link->rings->blocks;
    link->rings->blocks = b;
    pthread_mutex_unlock(&link->rings->lock);
    return b;
}

static block *take_block(tr_rpc *rpc, tr__rpc_link *link, size_t bytes)
{
    size_t size = size_of_block(bytes);
    block *b = find_block(link->rings, size);
    return b ? b : make_block(rpc, link, size);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void put(tr__rpc_ring *r, uint64_t tail, const void *bytes, size_t count)
{
    memcpy(r->data + tail % TR__RPC_RING_BYTES, bytes, count);
}

/* Under the lock: false when there is no room. A record does not cross the ring's end. */
static bool write_record(tr__rpc_rings *n, const void *bytes, size_t count)
{
    tr__rpc_ring *r = n->out;
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed), head = atomic_load(&r->head);
    size_t to_end = TR__RPC_RING_BYTES - tail % TR__RPC_RING_BYTES, pad = count > to_end ? to_end : 0;
    if (tail - head + pad + count > TR__RPC_RING_BYTES) return false;
    tr__rpc_record padding = {.bytes = (uint32_t)pad, .flags = TR__RPC_PAD};
    if (pad) put(r, tail, &padding, pad < sizeof padding ? 8 : sizeof padding);
    put(r, tail + pad, bytes, count);
    atomic_store(&r->tail, tail + pad + count);
    return true;
}

static void ring_bell(tr__rpc_bell *bell)
{
    if (atomic_load(&bell->awake) > 0) return;
    atomic_fetch_add(&bell->count, 1);
    if (atomic_load(&bell->sleepers) > 0) tr__futex_wake(&bell->count, 1);
}

static bool send_waiting(tr__rpc_link *link)
{
    tr__rpc_rings *n = link->rings;
    bool wrote = false;
    pthread_mutex_lock(&n->lock);
    for (waiting_record *w; (w = n->first) && (atomic_load(&link->gone) || write_record(n, w->data, w->bytes));) {
        n->first = w->next;
        if (!n->first) n->last = &n->first;
        free(w);
        wrote = true;
    }
    bool left = n->first != NULL;
    pthread_mutex_unlock(&n->lock);
    if (wrote && !atomic_load(&link->gone)) ring_bell(n->bell);
    return left;
}

static tr_status queue_record(tr_rpc *rpc, tr__rpc_rings *n, const void *bytes, size_t count)
{
    waiting_record *w = malloc(sizeof *w + count);
    if (!w) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    w->next = NULL;
    w->bytes = count;
    memcpy(w->data, bytes, count);
    *n->last = w;
    n->last = &w->next;
    tr__rpc_wake_clock(rpc); /* which flushes */
    return TR_OK;
}

static tr_status send_record(tr_rpc *rpc, tr__rpc_link *link, const void *bytes, size_t count)
{
    tr__rpc_rings *n = link->rings;
    tr_status status = TR_OK;
    pthread_mutex_lock(&n->lock);
    bool written = !n->first && write_record(n, bytes, count);
    if (!written) status = queue_record(rpc, n, bytes, count);
    pthread_mutex_unlock(&n->lock);
    if (written) ring_bell(n->bell);
    return status;
}

typedef struct sending {
    block **blocks;
    int count;
    tr__rpc_place few_places[4];
    block *few_blocks[4];
    tr__rpc_place *places;
} sending;

static tr_status fill_block(tr_rpc *rpc, tr__rpc_link *link, sending *s, const tr__rpc_piece *p)
{
    block *b = take_block(rpc, link, p->bytes);
    if (!b) return TR_NO_MEMORY;
    s->blocks[s->count] = b;
    s->places[s->count++] = (tr__rpc_place){b->id, p->bytes};
    if (p->tensor) return tr_copy_out(p->tensor, b->memory + TR__RPC_BLOCK_HEAD, p->bytes);
    memcpy(b->memory + TR__RPC_BLOCK_HEAD, p->data, p->bytes);
    return TR_OK;
}

static tr_status fill_blocks(tr_rpc *rpc, tr__rpc_link *link, sending *s, const tr__rpc_writer *w, bool beside)
{
    if (beside) TR__TRY(fill_block(rpc, link, s, &(tr__rpc_piece){.data = w->at, .bytes = w->used}));
    for (int i = 0; i < w->piece_count; i++) TR__TRY(fill_block(rpc, link, s, &w->pieces[i]));
    return TR_OK;
}

static tr_status send_all(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w, sending *s)
{
    bool beside = w->used + (size_t)w->piece_count * sizeof(tr__rpc_place) > TR__RPC_RECORD_MOST;
    TR__TRY(fill_blocks(rpc, link, s, w, beside));
    size_t body = beside ? 0 : tr__round_up(w->used, 8), places = (size_t)s->count * sizeof(tr__rpc_place);
    size_t bytes = sizeof(tr__rpc_record) + body + places;
    unsigned char small[1024], *at = bytes > sizeof small ? malloc(bytes) : small;
    if (!at) return tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    tr__rpc_record head = {.bytes = (uint32_t)bytes, .flags = beside ? TR__RPC_BODY_BESIDE : 0, .frame = *frame};
    memcpy(at, &head, sizeof head);
    if (!beside && w->used) memcpy(at + sizeof head, w->at, w->used);
    if (places) memcpy(at + sizeof head + body, s->places, places);
    for (int i = 0; i < s->count; i++) atomic_store(&head_of(s->blocks[i])->busy, 1);
    tr_status status = send_record(rpc, link, at, bytes);
    for (int i = 0; i < s->count && status != TR_OK; i++) atomic_store(&head_of(s->blocks[i])->busy, 0);
    if (at != small) free(at);
    return status;
}

static tr_status send_message(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{
    sending s = {.count = 0};
    size_t most = (size_t)w->piece_count + 1;
    bool few = most <= 4;
    s.places = few ? s.few_places : malloc(most * sizeof *s.places);
    s.blocks = few ? s.few_blocks : malloc(most * sizeof *s.blocks);
    tr_status status = s.places && s.blocks ? send_all(rpc, link, frame, w, &s)
                                            : tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
    if (s.count) {
        int64_t now = tr__now_ns();
        pthread_mutex_lock(&link->rings->lock);
        for (int i = 0; i < s.count; i++) {
            s.blocks[i]->taken = false;
            s.blocks[i]->used = now;
        }
        pthread_mutex_unlock(&link->rings->lock);
    }
    if (!few) {
        free(s.places);
        free(s.blocks);
    }
    return status;
}

/* Takes out a block that has not been used for a while, and lets the receiver forget it. */
static block *drop_idle(tr__rpc_link *link, int64_t now)
{
    tr__rpc_rings *n = link->rings;
    unsigned char bytes[sizeof(tr__rpc_record) + sizeof(tr__rpc_place)];
    block *found = NULL;
    pthread_mutex_lock(&n->lock);
    for (block **at = &n->blocks; *at; at = &(*at)->next) {
        block *b = *at;
        if (b->taken || atomic_load(&head_of(b)->busy) || now - b->used < IDLE_MS * (int64_t)1000000) continue;
        tr__rpc_record head = {.bytes = sizeof bytes, .flags = TR__RPC_DROP};
        tr__rpc_place place = {b->id, 0};
        memcpy(bytes, &head, sizeof head);
        memcpy(bytes + sizeof head, &place, sizeof place);
        if (n->first || !write_record(n, bytes, sizeof bytes)) break; /* the ring is full: the next time */
        found = b;
        *at = b->next;
        break;
    }
    pthread_mutex_unlock(&n->lock);
    if (found) ring_bell(n->bell);
    return found;
}

static bool flush(tr__rpc_link *link)
{
    bool left = send_waiting(link);
    if (atomic_load(&link->gone)) return left;
    for (block *b; (b = drop_idle(link, tr__now_ns()));) free_block(b);
    return left;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* It says that it reads no more? */
static bool is_over(const tr__rpc_link *link)
{
    return atomic_load_explicit(&link->rings->in->over, memory_order_relaxed) && atomic_load(&link->ending) == TR__RPC_LASTS;
}

static bool waiting(const tr__rpc_link *link)
{
    tr__rpc_ring *r = link->rings->in;
    if (!r || atomic_load_explicit(&link->ending, memory_order_relaxed) == TR__RPC_DAMAGED) return false;
    if (is_over(link)) return true;
    return !atomic_load(&link->rings->stalled) &&
           atomic_load(&r->tail) != atomic_load_explicit(&r->head, memory_order_relaxed);
}

static void release_block(void *memory, void *user)
{
    tr__rpc_block_head *head = (tr__rpc_block_head *)((char *)memory - TR__RPC_BLOCK_HEAD);
    atomic_store(&head->busy, 0);
    drop_mapping(user);
}

static bool find_piece(tr_rpc *rpc, tr__rpc_rings *n, tr__rpc_place p, tr__rpc_arrived *piece)
{
    mapping *m = take_mapping(rpc, n, p.segment);
    if (!m) return false;
    if (p.bytes > m->memory.bytes - TR__RPC_BLOCK_HEAD) {
        drop_mapping(m);
        return false;
    }
    *piece = (tr__rpc_arrived){.memory = m->memory.memory + TR__RPC_BLOCK_HEAD, .bytes = p.bytes, .release = release_block,
        .user = m};
    return true;
}

typedef enum found { READ, NOT_YET, DAMAGED } found;

/* What a record names: the body, when it lies beside, then the pieces. */
static bool take_blocks(tr_rpc *rpc, tr__rpc_rings *n, const unsigned char *places, bool beside, tr__rpc_inbound *m)
{
    for (int i = 0; i < m->piece_count + beside; i++) {
        tr__rpc_place p;
        tr__rpc_arrived piece;
        memcpy(&p, places + (size_t)i * sizeof p, sizeof p);
        if (!find_piece(rpc, n, p, &piece)) return false;
        if (!beside || i > 0) {
            m->pieces[i - beside] = piece;
            continue;
        }
        bool fits = piece.bytes == m->frame.body;
        if (fits) memcpy(m->body, piece.memory, piece.bytes);
        piece.release(piece.memory, piece.user);
        if (!fits) return false;
    }
    return true;
}

/* The record's bytes, copied; what stands in it is held against its bounds, as its sender may be damaged. */
static found read_message(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_record *head, const unsigned char *rest)
{
    bool beside = head->flags & TR__RPC_BODY_BESIDE;
    size_t left = head->bytes - sizeof *head, body = beside ? 0 : tr__round_up(head->frame.body, 8);
    int blocks = head->frame.pieces + beside;
    if (!tr__rpc_frame_sound(&head->frame) || left != body + (size_t)blocks * sizeof(tr__rpc_place)) return DAMAGED;
    if (blocks && !all_mapped(rpc, link, rest + body, blocks)) return NOT_YET;
    tr__rpc_inbound *m = tr__inbound_new(link->worker, &head->frame);
    if (!m) return DAMAGED;
    if (!beside) memcpy(m->body, rest, head->frame.body);
    if (take_blocks(rpc, link->rings, rest + body, beside, m)) {
        tr__rpc_found(rpc, m);
        return READ;
    }
    tr__inbound_free(m);
    return DAMAGED;
}

static found read_drop(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_record *head, const unsigned char *rest)
{
    tr__rpc_place p;
    if (head->bytes != sizeof *head + sizeof p) return DAMAGED;
    memcpy(&p, rest, sizeof p);
    forget_mapping(rpc, link->rings, p.segment);
    return READ;
}

/* One record. */
static found read_record(tr_rpc *rpc, tr__rpc_link *link, uint64_t *head, uint64_t tail)
{
    const tr__rpc_ring *r = link->rings->in;
    const unsigned char *at = r->data + *head % TR__RPC_RING_BYTES;
    size_t to_end = TR__RPC_RING_BYTES - *head % TR__RPC_RING_BYTES, there = tail - *head;
    tr__rpc_record copy = {0};
    if (*head % 8 || there > TR__RPC_RING_BYTES || there < 8) return DAMAGED;
    memcpy(&copy, at, to_end < sizeof copy ? 8 : sizeof copy);
    if (copy.bytes < 8 || copy.bytes % 8 || copy.bytes > there || copy.bytes > to_end) return DAMAGED;
    found result = READ;
    if (!(copy.flags & TR__RPC_PAD)) {
        if (copy.bytes < sizeof copy) return DAMAGED;
        result = copy.flags & TR__RPC_DROP ? read_drop(rpc, link, &copy, at + sizeof copy)
                                            : read_message(rpc, link, &copy, at + sizeof copy);
    }
    if (result == READ) *head += copy.bytes;
    return result;
}

static void read_rings(tr_rpc *rpc, tr__rpc_link *link)
{
    tr__rpc_ring *r = link->rings->in;
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed), tail = atomic_load(&r->tail);
    found result = READ;
    while (head != tail && !atomic_load(&link->rings->stalled) && (result = read_record(rpc, link, &head, tail)) == READ)
        atomic_store(&r->head, head);
    if (result == DAMAGED)
        tr__rpc_lose(rpc, link->worker, TR__RPC_DAMAGED);
    else if (is_over(link))
        tr__rpc_lose(rpc, link->worker, TR__RPC_CUT);
}

static void refuse(tr__rpc_link *link)
{
    atomic_store(&link->rings->out->over, true);
    ring_bell(link->rings->bell);
}

const tr__rpc_driver tr__rpc_by_rings = {.send = send_message, .waiting = waiting, .read = read_rings, .over = overdue,
    .how = TR__RPC_DAMAGED, .flush = flush, .refuse = refuse, .free = free_rings};
