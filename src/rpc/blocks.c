/*
 * Blocks: shared memory in which tensors travel to a worker of this host. The sender copies a piece into a block once, and
 * tensors of the receiver lie in it; when the last of them goes, a flag in the block says so, and the sender uses it again,
 * or gives it back when it has not been used for a while.
 *
 * A tensor in a block that nobody refers to any more but the message that it goes with is not copied: the message names the
 * block, and the right to use it passes to the receiver, who may be the one that made it. Who has passed a block on leaves it
 * and its flag alone.
 */
#include "rpc/agent.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/memory.h"
#include "base/thread.h"
#include "tensor/list.h"

#include <stdlib.h>
#include <string.h>

enum { IDLE_MS = 10000 };

struct tr__rpc_shared_block {
    tr__rpc_shared_block *next;
    char *memory;
    uint64_t segment;
    size_t bytes; /* without the head */
    int64_t used; /* when it was taken last */
    atomic_bool filling; /* we write to it, whatever becomes of the worker */
    atomic_bool away;    /* the worker may have it, and may send it back */
    atomic_bool made;    /* by a function, which has not passed it on */
};

static tr__rpc_block_head *head_of(void *data)
{
    return (tr__rpc_block_head *)((char *)data - TR__RPC_BLOCK_HEAD);
}

static atomic_uint *busy_flag(void *data)
{
    return &head_of(data)->busy;
}

static void *data_of(const tr__rpc_shared_block *b)
{
    return b->memory + TR__RPC_BLOCK_HEAD;
}

static bool is_busy(const tr__rpc_shared_block *b)
{
    return atomic_load(busy_flag(data_of(b)));
}

/* ---- Our blocks -------------------------------------------------------------------------------------------------- */

/* Four sizes per octave, so that one is found again. */
static size_t size_of_block(size_t bytes)
{
    size_t step = 4096;
    while (step * 8 < bytes) step *= 2;
    return tr__round_up(bytes, step);
}

/* A receiver that goes may let go of one that we still copy to. */
static bool is_free(const tr__rpc_shared_block *b)
{
    return !is_busy(b) && !atomic_load(&b->filling);
}

static tr__rpc_shared_block *find_free(tr__rpc_blocks *blocks, size_t size)
{
    tr__rpc_shared_block *found = NULL;
    TR__LOCKED(&blocks->lock);
    for (tr__rpc_shared_block *b = blocks->first; b && !found; b = b->next)
        if (b->bytes == size && is_free(b)) found = b;
    if (found) {
        atomic_store(busy_flag(data_of(found)), 1);
        found->used = tr__now_ns();
        atomic_store(&found->made, false);
        atomic_store(&found->away, false);
        atomic_store(&found->filling, true);
    }
    return found;
}

static void free_block(tr__rpc_shared_block *b)
{
    tr_shared_free(b->memory);
    free(b);
}

static tr__rpc_shared_block *make_block(tr_rpc *rpc, tr__rpc_link *link, size_t size)
{
    tr__rpc_shared_block *b = malloc(sizeof *b);
    if (!b) {
        tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        return NULL;
    }
    *b = (tr__rpc_shared_block){.bytes = size, .used = tr__now_ns(), .filling = true,
        .memory = tr_shared_alloc(size + TR__RPC_BLOCK_HEAD)};
    if (!b->memory || tr__raw_show(rpc->group, link->worker, b->memory, &b->segment) != TR_OK) {
        free_block(b);
        return NULL;
    }
    tr__segment_close(b->memory); /* nobody else is shown it */
    atomic_store(busy_flag(data_of(b)), 1);
    TR__LOCKED(&link->blocks.lock);
    b->next = link->blocks.first;
    link->blocks.first = b;
    return b;
}

tr__rpc_shared_block *tr__block_take(tr_rpc *rpc, tr__rpc_link *link, size_t bytes, void **memory, uint64_t *segment)
{
    size_t size = size_of_block(bytes);
    tr__rpc_shared_block *b = find_free(&link->blocks, size);
    if (!b) b = make_block(rpc, link, size);
    if (!b) return NULL;
    *memory = data_of(b);
    *segment = b->segment;
    return b;
}

void tr__block_filled(tr__rpc_shared_block *b)
{
    atomic_store(&b->away, true);
    atomic_store_explicit(busy_flag(data_of(b)), 1, memory_order_release);
}

void tr__block_give_back(tr__rpc_shared_block *b)
{
    atomic_store(&head_of(data_of(b))->copying, 0);
    atomic_store(busy_flag(data_of(b)), 0);
    tr__block_left(b);
}

void tr__block_left(tr__rpc_shared_block *b)
{
    atomic_store(&b->filling, false);
}

void tr__blocks_trim(tr__rpc_link *link)
{
    int64_t since = tr__now_ns() - IDLE_MS * (int64_t)1000000;
    tr__rpc_shared_block *idle = NULL;
    bool gone = atomic_load(&link->gone); /* then nobody gives one back */
    pthread_mutex_lock(&link->blocks.lock);
    for (tr__rpc_shared_block **at = &link->blocks.first, *b; (b = *at);) {
        if (atomic_load(&b->filling) || (is_busy(b) && !gone) || b->used > since) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->next = idle;
        idle = b;
    }
    pthread_mutex_unlock(&link->blocks.lock);
    TR__FOR_EACH(b, idle) free_block(b);
}

void tr__blocks_free(tr__rpc_link *link)
{
    TR__FOR_EACH(b, link->blocks.first) free_block(b);
    link->blocks.first = NULL;
    free(link->blocks.chunk);
    link->blocks.chunk = NULL;
}

/* ---- Copying by both sides --------------------------------------------------------------------------------------- */

/*
 * A large piece is sent before it is copied, so that the receiver can copy a part of it. The sender takes chunks from the front,
 * and the receiver from the end, one at a time, which it reads from the sender's memory through the kernel. `progress` has the
 * chunks that nobody has taken, and what the receiver does with the one behind them. It first reads that to memory of its own and
 * says so (GOT): from then on the sender may change what was read. A sender that does not want to wait for a receiver that is
 * stopped takes the chunk away (REFUSED); what the receiver reads of it then counts for nothing.
 */
enum { CHUNK = 256 << 10, PATIENCE_NS = 100000, MOST_AT_ONCE = 4 };
enum { READING = 1, GOT, REFUSED };

typedef struct progress {
    unsigned first, end, receiver;
} progress;

static progress progress_of(uint64_t word)
{
    return (progress){word & 0xffffff, word >> 24 & 0xffffff, (unsigned)(word >> 48)};
}

static uint64_t word_of(progress p)
{
    return p.first | (uint64_t)p.end << 24 | (uint64_t)p.receiver << 48;
}

static unsigned chunks_of(uint64_t bytes)
{
    return (unsigned)((bytes + CHUNK - 1) / CHUNK);
}

/* Copies one; the number may be any, as it comes from shared memory. */
static void copy_chunk(void *to, const void *from, uint64_t bytes, unsigned chunk)
{
    uint64_t at = (uint64_t)chunk * CHUNK;
    if (at < bytes) memcpy((char *)to + at, (const char *)from + at, bytes - at < CHUNK ? bytes - at : CHUNK);
}

void tr__block_offer(tr__rpc_shared_block *b, const void *from, uint64_t bytes)
{
    tr__rpc_block_head *head = head_of(data_of(b));
    atomic_store(&b->away, true);
    atomic_store(&head->from, (uint64_t)(uintptr_t)from);
    atomic_store(&head->progress, word_of((progress){.end = chunks_of(bytes)}));
    atomic_store(&head->copying, 1);
}

void tr__block_copy(tr__rpc_shared_block *b, const void *from, uint64_t bytes)
{
    tr__rpc_block_head *head = head_of(data_of(b));
    uint64_t word = atomic_load(&head->progress);
    for (progress p = progress_of(word); p.first < p.end; p = progress_of(word)) {
        uint64_t taken = word_of((progress){p.first + 1, p.end, p.receiver});
        if (!atomic_compare_exchange_weak(&head->progress, &word, taken)) continue;
        copy_chunk(data_of(b), from, bytes, p.first);
        word = taken;
    }
    int64_t until = tr__now_ns() + PATIENCE_NS;
    progress p = progress_of(word);
    for (; p.receiver == READING; p = progress_of(word)) {
        progress refused = {p.first, p.end, REFUSED};
        if (tr__now_ns() > until) atomic_compare_exchange_strong(&head->progress, &word, word_of(refused));
        word = atomic_load(&head->progress);
    }
    if (p.receiver == REFUSED) copy_chunk(data_of(b), from, bytes, p.end);
    atomic_store(&head->copying, 0);
}

/* Takes the last free chunk; false: all are taken, or the receiver has failed to read one. */
static bool take_last(tr__rpc_block_head *head, unsigned *chunk)
{
    uint64_t word = atomic_load(&head->progress);
    for (progress p = progress_of(word); p.first < p.end && p.receiver != REFUSED; p = progress_of(word)) {
        *chunk = p.end - 1;
        progress taken = {p.first, p.end - 1, READING};
        if (atomic_compare_exchange_weak(&head->progress, &word, word_of(taken))) return true;
    }
    return false;
}

/* False: the sender has taken it away. */
static bool keep_chunk(tr__rpc_block_head *head, bool got)
{
    uint64_t word = atomic_load(&head->progress);
    for (progress p = progress_of(word); p.receiver == READING; p = progress_of(word)) {
        progress kept = {p.first, p.end, got ? GOT : REFUSED};
        if (atomic_compare_exchange_weak(&head->progress, &word, word_of(kept))) return got;
    }
    return false;
}

tr__rpc_copying tr__block_help(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_arrived *piece)
{
    tr__rpc_block_head *head = head_of(piece->memory);
    tr__rpc_blocks *blocks = &link->blocks;
    if (!atomic_load(&head->busy) || !atomic_load(&head->copying)) return TR__RPC_COPIED;
    if (!blocks->chunk) blocks->chunk = malloc(CHUNK);
    for (int i = 0; i < MOST_AT_ONCE; i++) {
        unsigned chunk;
        if (!blocks->chunk || !take_last(head, &chunk)) return atomic_load(&head->copying) ? TR__RPC_AWAITED : TR__RPC_COPIED;
        uint64_t at = (uint64_t)chunk * CHUNK, bytes = at < piece->bytes ? piece->bytes - at : 0;
        if (bytes > CHUNK) bytes = CHUNK;
        bool got = bytes && tr__raw_read(rpc->group, link->worker, atomic_load(&head->from) + at, bytes, blocks->chunk);
        if (keep_chunk(head, got)) memcpy(piece->memory + at, blocks->chunk, bytes);
    }
    return TR__RPC_COPYING;
}

/* ---- Theirs ------------------------------------------------------------------------------------------------------ */

typedef struct their_block {
    tr__shm_mapping mapping;
    uint64_t link; /* the id of the one that it came over */
} their_block;

static void leave_theirs(void *memory, void *block)
{
    (void)memory;
    tr__shm_mapping_close(&((their_block *)block)->mapping);
    free(block);
}

static void release_theirs(void *memory, void *block)
{
    atomic_store(busy_flag(memory), 0);
    leave_theirs(memory, block);
}

bool tr__block_arrived(const tr__rpc_link *link, const tr__shm_mapping *mapping, uint64_t bytes, tr__rpc_arrived *piece)
{
    their_block *held = malloc(sizeof *held);
    if (!held || mapping->bytes < TR__RPC_BLOCK_HEAD || bytes > mapping->bytes - TR__RPC_BLOCK_HEAD) {
        tr__shm_mapping_close(mapping);
        free(held);
        return false;
    }
    *held = (their_block){*mapping, link->blocks.id};
    *piece = (tr__rpc_arrived){.memory = mapping->memory + TR__RPC_BLOCK_HEAD, .bytes = bytes, .release = release_theirs,
        .user = held};
    return true;
}

/* ---- Our blocks that came back ----------------------------------------------------------------------------------- */

/* By its number, as the agent may end before the last tensor in it, which holds its memory. */
static void leave_ours(void *memory, void *segment)
{
    (void)memory;
    tr__segment_unref((uint64_t)(uintptr_t)segment);
}

static void release_ours(void *memory, void *segment)
{
    atomic_store(busy_flag(memory), 0);
    leave_ours(memory, segment);
}

/* Under the lock. */
static tr__rpc_shared_block *find_block(const tr__rpc_blocks *blocks, uint64_t segment)
{
    tr__rpc_shared_block *b = blocks->first;
    while (b && b->segment != segment) b = b->next;
    return b;
}

bool tr__block_came_back(tr__rpc_link *link, uint64_t segment, uint64_t bytes, tr__rpc_arrived *piece)
{
    tr__segment held;
    TR__LOCKED(&link->blocks.lock);
    tr__rpc_shared_block *b = find_block(&link->blocks, segment);
    bool back = b && atomic_load(&b->away) && is_busy(b) && bytes <= b->bytes && tr__segment_ref(segment, &held);
    if (back) {
        atomic_store(&b->away, false);
        *piece = (tr__rpc_arrived){.memory = data_of(b), .bytes = bytes, .release = release_ours,
            .user = (void *)(uintptr_t)segment};
    }
    return back;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* A function may keep what it makes, and the kernel maps only so many blocks. */
static bool keeps_many(tr__rpc_blocks *blocks)
{
    enum { MANY = 64 };
    int kept = 0;
    pthread_mutex_lock(&blocks->lock);
    for (const tr__rpc_shared_block *b = blocks->first; b; b = b->next) kept += atomic_load(&b->made) && is_busy(b);
    pthread_mutex_unlock(&blocks->lock);
    return kept >= MANY;
}

static bool take_for_result(const tr__block_target *t, tr__storage *storage, uint64_t *segment)
{
    tr__segment held;
    if (keeps_many(&t->link->blocks)) return false;
    tr__rpc_shared_block *b = tr__block_take(t->rpc, t->link, storage->bytes, &storage->data, segment);
    if (b && !tr__segment_ref(*segment, &held)) {
        tr__block_give_back(b);
        return false;
    }
    if (!b) return false;
    atomic_store(&b->made, true);
    tr__block_left(b); /* the tensor holds the memory */
    return true;
}

bool tr__block_make(void *target, tr__storage *storage)
{
    const tr__block_target *t = target;
    uint64_t segment;
    if (t->forks != tr__forks()) return false; /* a child's lock keeps no other process from a block */
    TR__KEEP_ERROR;
    bool made = tr__rpc_enter(&t->rpc->sending) && take_for_result(t, storage, &segment);
    tr__rpc_leave(&t->rpc->sending);
    if (!made) return false;
    storage->release = release_ours;
    storage->user = (void *)(uintptr_t)segment;
    return true;
}

/* ---- Passing on -------------------------------------------------------------------------------------------------- */

/* The block that the whole of a tensor lies in, from its beginning: its number, as the link's worker is told it. 0: none of the
 * link's. No block is kept for a small part of it. */
static uint64_t block_of(tr__rpc_link *link, const tr_tensor *x)
{
    if (!x || tr__bad(x) || x->storage->kind != TR__WRAPPED || x->offset || !tr_is_contiguous(x)) return 0;
    const tr__storage *s = x->storage;
    if ((size_t)tr__numel(x->shape) * tr_dtype_size(x->dtype) < s->bytes / 2) return 0;
    if (s->release == release_theirs) {
        const their_block *held = s->user;
        return held->link == link->blocks.id ? held->mapping.id | TR__RPC_YOURS : 0;
    }
    uint64_t segment = s->release == release_ours ? (uint64_t)(uintptr_t)s->user : 0;
    pthread_mutex_lock(&link->blocks.lock);
    bool ours = segment && find_block(&link->blocks, segment);
    pthread_mutex_unlock(&link->blocks.lock);
    return ours ? segment : 0;
}

bool tr__block_holds(tr__rpc_link *link, const tr_value *value)
{
    if (value->kind == TR_VALUE_TENSOR) return block_of(link, value->tensor) != 0;
    const tr_tensor_list *list = value->kind == TR_VALUE_TENSORS ? value->tensors : NULL;
    bool any = false;
    for (int i = 0; list && i < list->count; i++) {
        const tr_tensor *x = list->entries[i].tensor;
        bool borrows = x && !tr__bad(x) && x->storage->kind == TR__WRAPPED && !x->storage->release;
        if (borrows) return false; /* maybe from what ends with the scope */
        any = any || block_of(link, x);
    }
    return any;
}

uint64_t tr__block_pass_on(tr__rpc_link *link, const tr_tensor *x)
{
    tr__storage *s = x->storage;
    uint64_t segment = tr__refs(x) == 1 && atomic_load(&s->refs) == 1 ? block_of(link, x) : 0;
    if (!segment) return 0;
    if (segment & TR__RPC_YOURS) {
        atomic_store(busy_flag(s->data), 1); /* as it is: for ThreadSanitizer, see tr__block_filled() */
        s->release = leave_theirs;
        return segment;
    }
    s->release = leave_ours;
    TR__LOCKED(&link->blocks.lock);
    tr__rpc_shared_block *b = find_block(&link->blocks, segment);
    if (b) atomic_store(&b->made, false);
    if (b) tr__block_filled(b);
    return segment;
}

void tr__block_keep(tr__rpc_link *link, const tr_tensor *x)
{
    tr__storage *s = x->storage;
    if (s->release == leave_theirs) s->release = release_theirs;
    if (s->release != leave_ours) return;
    s->release = release_ours;
    TR__LOCKED(&link->blocks.lock);
    tr__rpc_shared_block *b = find_block(&link->blocks, (uint64_t)(uintptr_t)s->user);
    if (b) atomic_store(&b->away, false);
}
