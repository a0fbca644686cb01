/*
 * What a worker may send to an agent: through the ring of a worker of the same host, or the stream of one of another. A real
 * agent reads them, takes its replies, and runs the functions that they ask for; it has calls and references of its own under
 * way, and a distributed backward, in a context with an optimizer. But for its threads: all happens in this one, so that the
 * same input always does the same.
 *
 * The first byte says which: bit 0: a stream; bit 1: the ring is almost at its end; bit 2: it says that it holds more than it can;
 * bit 3: what frames say of themselves is put right, so that their bodies are read; bit 4: the backward is SMART.
 */
/* fuzz: 30000, soak: 1000000 */
#include "fuzz.h"

#include "base/clock.h"
#include "comm/transport/shm_channel.h"
#include "parallel/dist/rpc.h"
#include "rpc/agent.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCKS = 2, BLOCK_BYTES = TR__RPC_BLOCK_HEAD + 3000, LAST = 64 };

static struct {
    tr_rpc *rpc;
    tr__rpc_page *page;     /* of rank 1, */
    tr__shm_channel *ring;  /* the ring that the agent reads, */
    uint64_t shown, blocks[BLOCKS]; /* and the segments of its page and blocks, */
    uint64_t taken;         /* and of a block of the agent's that rank 1 may send back */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    tr_group *groups[2], *twin; /* of rank 1 */
} world = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- Functions of the agent ----------------------------------------------------------------------------------------- */

static tr_tensor *echo(tr_tensor *x)
{
    return x;
}
TR_RPC(echo, TENSOR, RETURNS(TENSOR));

static int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
TR_RPC(add, I64, I64, RETURNS(I64));

static tr_rref *pass_on(tr_rref *ref)
{
    return ref;
}
TR_RPC(pass_on, RREF, RETURNS(RREF));

static const char *say(const char *text)
{
    return text;
}
TR_RPC(say, STRING, RETURNS(STRING));

static tr_tensor_list *list(tr_tensor_list *tensors, tr_bytes bytes, double unused)
{
    (void)unused;
    return bytes.size > 100 ? NULL : tensors;
}
TR_RPC(list, TENSORS, BYTES, F64, RETURNS(TENSORS));

/* ---- Inputs to begin with ------------------------------------------------------------------------------------------- */

static void begin_request(tr__rpc_writer *w, unsigned flags, const char *function, int count)
{
    tr__rref_token token = {.id = {.maker = 1, .number = (uint64_t)1 << 40}, .fork = {.maker = 1, .number = 1}};
    tr__rpc_write_u32(w, flags);
    tr__rpc_write_text(w, function);
    if (flags & TR__CALL_KEEP) tr__rpc_write_bytes(w, &token, sizeof token);
    if (flags & TR__CALL_DEREFERENCE) tr__rpc_write_bytes(w, &token.id, sizeof token.id);
    tr__rpc_write_note(w, &(tr__rpc_note){0});
    tr__rpc_write_u32(w, (uint32_t)count);
}

/* What a reference is on the wire. */
static void write_reference(tr__rpc_writer *w, uint32_t number)
{
    tr__rref_token token = {.owner = (int)(number & 1), .id = {.maker = (int)(number >> 1 & 1),
        .number = number & 4 ? (uint64_t)1 << 40 : 1}, .fork = {.maker = 1, .number = 2 + number % 5}};
    tr__rpc_write_bytes(w, (uint8_t[]){TR_VALUE_RREF, 1}, 2);
    tr__rpc_write_bytes(w, &token, sizeof token);
}

static void write_request(tr__rpc_writer *w, uint32_t number)
{
    tr_tensor *x = tr_ones(TR_SHAPE((int64_t)(number / 8 % 30)));
    tr_tensor_list *tensors = tr_list_new();
    FUZZ_CHECK(tr_list_add(tensors, "x", x) == TR_OK);
    static const char *const names[] = {"echo", "add", "pass_on", "say", "list", "echo", TR__RPC_FETCH, "add"};
    static const int counts[] = {1, 2, 1, 1, 3, 1, 0, 1};
    static const unsigned flags[] = {0, 0, 0, 0, 0, TR__CALL_KEEP, TR__CALL_DEREFERENCE, TR__CALL_DEREFERENCE};
    uint32_t which = number % 8;
    begin_request(w, flags[which], names[which], counts[which]);
    if (which == 0 || which == 5) tr__rpc_write_value(w, &(tr_value){TR_VALUE_TENSOR, {.tensor = x}});
    if (which == 1) tr__rpc_write_value(w, TR_VALUES(20));
    if (which == 1 || which == 7) tr__rpc_write_value(w, TR_VALUES(22));
    if (which == 2) write_reference(w, number / 8);
    if (which == 3) tr__rpc_write_value(w, TR_VALUES("ahoy"));
    if (which != 4) return;
    tr__rpc_write_value(w, TR_VALUES(tensors));
    tr__rpc_write_value(w, &(tr_value){TR_VALUE_BYTES, {.bytes = {"rope", 4}}});
    tr__rpc_write_value(w, TR_VALUES(0.5));
}

/* What distributed autograd and its optimizers say to each other (parallel/dist/rpc.c): of the context that is there, or of
 * another one. */
static void write_dist_message(tr__rpc_writer *w, uint32_t number)
{
    int64_t kind = number % TR__DIST_KINDS, message[] = {kind, number >> 3 & 1, 1, 1 + (number >> 4 & 1), number >> 5 & 1, 0,
        kind == TR__DIST_ABORT ? TR_PEER : 0, number >> 8 & 3};
    bool gradient = kind == TR__DIST_GRADIENT;
    begin_request(w, 0, ".distributed backward", 1 + gradient);
    tr__rpc_write_value(w, &(tr_value){TR_VALUE_BYTES, {.bytes = {message, sizeof message}}});
    if (gradient)
        tr__rpc_write_value(w, number & 512 ? &(tr_value){TR_VALUE_NONE, {0}} : TR_VALUES(tr_ones(TR_SHAPE(3))));
}

static void write_order(tr__rpc_writer *w, uint32_t number)
{
    static const struct {
        const char *name, *kinds; /* i: a number of 0 … 3, f: 0.5 */
    } orders[] = {{".distributed step in backward", "iii"}, {".distributed step", "iii"},
        {".norm of distributed gradients", "iiii"}, {".clipping of distributed gradients", "iiif"},
        {".learning rate of a distributed optimizer", "if"}, {".state of a distributed optimizer", "i"},
        {".loading of a distributed optimizer", "it"}, {".end of a distributed optimizer", "i"}};
    const char *kinds = orders[number % 8].kinds;
    begin_request(w, 0, orders[number % 8].name, (int)strlen(kinds));
    for (uint32_t at = number / 8; *kinds; kinds++, at /= 4) {
        if (*kinds == 'i') tr__rpc_write_value(w, TR_VALUES((int64_t)(kinds == orders[number % 8].kinds ? 1 : at % 4)));
        if (*kinds == 'f') tr__rpc_write_value(w, TR_VALUES(0.5));
        if (*kinds == 't') tr__rpc_write_value(w, TR_VALUES(tr_list_new()));
    }
}

enum { CALL_IN_CONTEXT = 4 };

/* In a context: of a tensor that has a gradient, which rank 1 knows as its number 5, in answer to number 0; or numbers that
 * one must not count on from. */
static void write_result(tr__rpc_writer *w, bool in_context, uint32_t number)
{
    const int64_t words[] = {0, 1, in_context, number & 32 ? INT64_MAX : 5, number & 64 ? INT64_MAX : 0, 1};
    tr__rpc_note note = {.bytes = in_context ? sizeof words : 0};
    memcpy(note.data, words, sizeof words);
    tr__rpc_write_note(w, &note);
    const tr_value *plain = number & 16 ? TR_VALUES(7) : TR_VALUES("answer");
    tr__rpc_write_value(w, in_context ? &(tr_value){TR_VALUE_TENSOR, {.tensor = tr_ones(TR_SHAPE(3))}} : plain);
}

/* A body that goes with the frame. */
static void write_body(tr__rpc_writer *w, tr__rpc_frame *frame, uint32_t number)
{
    tr__refer refer = {.kind = 1 + number / 7 % 6,
        .id = {.maker = (int)(number & 1), .number = number & 2 ? 1 : (uint64_t)1 << 40 | (number & 4)},
        .fork = {.maker = (int)(number >> 3 & 1), .number = number >> 4 & 3}};
    switch (frame->type = (uint8_t)(1 + number % 7)) {
    case TR__RPC_REQUEST:
        if (number / 7 % 3 == 0) write_request(w, number / 21);
        if (number / 7 % 3 == 1) write_dist_message(w, number / 21);
        if (number / 7 % 3 == 2) write_order(w, number / 21);
        return;
    case TR__RPC_REPLY:
        frame->id = 1 + number / 7 % 4;
        frame->status = number & 8 ? TR_SHAPE : TR_OK;
        if (frame->status) {
            tr__rpc_write_note(w, &(tr__rpc_note){0});
            tr__rpc_write_text(w, "no wind");
            return;
        }
        write_result(w, frame->id == CALL_IN_CONTEXT, number);
        return;
    case TR__RPC_REFER: tr__rpc_write_bytes(w, &refer, sizeof refer); return;
    case TR__RPC_ANSWER:
        for (int i = 0; i < 3; i++) tr__rpc_write_u64(w, number);
        return;
    default: return;
    }
}

/* Some with a piece in a block, as long as that or shorter, which is number 1 or 2 there, or 3, of the agent's; or behind the
 * message. */
static size_t add_frame(uint8_t *bytes, size_t room, const tr__rpc_frame *frame, const tr__rpc_writer *w, uint32_t number)
{
    tr__rpc_frame f = *frame;
    tr__rpc_place place = {number / 5 % 4, number % 2 ? 3000 : w->used};
    f.pieces = number % 7 == 2;
    f.payload = f.pieces ? place.bytes : 0;
    size_t places = f.pieces ? sizeof place : 0, behind = f.pieces && !place.segment ? place.bytes : 0;
    size_t used = sizeof f + w->used;
    if (used + places + behind > room) return 0;
    memcpy(bytes, &f, sizeof f);
    memcpy(bytes + sizeof f, w->at, w->used);
    memcpy(bytes + used, &place, places);
    memset(bytes + used + places, 1, behind);
    return used + places + behind;
}

static void start(void);

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    TR_SCOPE;
    start();
    size_t used = 1;
    bytes[0] = (uint8_t)number;
    uint32_t messages = 1 + number / 8 % 4;
    for (uint32_t i = 0, n = number / 32; i < messages; i++, n = n * 5 + 3) {
        tr__rpc_writer w;
        tr__rpc_writer_begin(&w);
        tr__rpc_frame frame = {.magic = TR__RPC_MAGIC, .version = TR__RPC_VERSION, .id = n};
        write_body(&w, &frame, n);
        FUZZ_CHECK(w.status == TR_OK);
        frame.body = (uint32_t)w.used;
        used += add_frame(bytes + used, FUZZ_SEED - used, &frame, &w, n / 7);
        tr__rpc_writer_end(&w);
    }
    return used;
}

/* ---- The agent ------------------------------------------------------------------------------------------------------ */

static tr_group *join(tr_store *store, int rank, tr_group **twin)
{
    tr_group *group = tr_join(.store = store, .rank = rank, .world_size = 2);
    *twin = tr_keep(tr__group_twin(group));
    FUZZ_CHECK(tr_status_of(*twin) == TR_OK);
    return tr_keep(group);
}

/* Shows rank 0 memory of so many bytes. */
static void *show(size_t bytes, uint64_t *segment)
{
    void *memory = tr_shared_alloc(bytes);
    FUZZ_CHECK(memory && tr__raw_show(world.twin, 0, memory, segment) == TR_OK);
    return memory;
}

static tr__rpc_page *make_page(size_t bytes)
{
    tr__rpc_page *page = tr_shared_alloc(bytes);
    FUZZ_CHECK(page);
    page->magic = TR__RPC_MAGIC;
    page->version = TR__RPC_VERSION;
    return page;
}

/* Rank 1 does nothing but to show memory. */
static void *be_there(void *store)
{
    TR_SCOPE;
    uint64_t ring;
    world.groups[1] = join(store, 1, &world.twin);
    world.page = make_page(sizeof *world.page + 2 * sizeof *world.page->rings);
    FUZZ_CHECK(tr__raw_show(world.twin, 0, world.page, &world.shown) == TR_OK);
    world.ring = show(sizeof *world.ring, &ring);
    atomic_store(&world.page->rings[0], ring);
    for (int i = 0; i < BLOCKS; i++) show(BLOCK_BYTES, &world.blocks[i]);
    return NULL;
}

/* Where rank 1 has sent nothing yet. */
static void renew_link(void)
{
    tr_rpc *rpc = world.rpc;
    if (rpc->links[1].stream) tr__link_free(&rpc->links[1]);
    atomic_store(&world.ring->closed, 0);
    atomic_store(&rpc->links[1].ending, TR__RPC_LASTS);
    FUZZ_CHECK(tr__link_make_ring(&rpc->links[1]) == TR_OK);
    FUZZ_CHECK(tr__link_show_ring(rpc, &rpc->links[1]) == TR_OK);
    FUZZ_CHECK(tr__link_find_ring(rpc, &rpc->links[1], world.shown) == TR_OK);
    void *memory;
    FUZZ_CHECK(tr__block_take(rpc, &rpc->links[1], BLOCK_BYTES - TR__RPC_BLOCK_HEAD, &memory, &world.taken));
}

static void register_all(void)
{
    const tr_rpc_function *const all[] = {&echo_rpc, &add_rpc, &pass_on_rpc, &say_rpc, &list_rpc};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) FUZZ_CHECK(tr_rpc_register(world.rpc, all[i]) == TR_OK);
    FUZZ_CHECK(tr_dist_start(world.rpc) == TR_OK);
}

static void start(void)
{
    pthread_t peer;
    if (world.rpc) return;
    tr_rpc *rpc = world.rpc = tr__object_new_kept(&tr__rpc_type);
    tr_store *store = tr_keep(tr_store_memory());
    FUZZ_CHECK(pthread_create(&peer, NULL, be_there, store) == 0);
    world.groups[0] = join(store, 0, &rpc->group);
    pthread_join(peer, NULL);
    rpc->world = 2;
    rpc->links = calloc(2, sizeof *rpc->links);
    rpc->answers = calloc(2, sizeof *rpc->answers);
    rpc->page = make_page(sizeof *rpc->page + 2 * sizeof *rpc->page->rings);
    FUZZ_CHECK(rpc->links && rpc->answers);
    rpc->links[1].worker = 1;
    strcpy(rpc->links[0].name, "w0");
    strcpy(rpc->links[1].name, "w1");
    tr__fail(TR_PEER, "the input has ended");
    rpc->links[1].why = tr__error_take();
    rpc->queue_bytes = UINT64_MAX;
    rpc->threads_most = 1;
    rpc->found_last = &rpc->found;
    rpc->watch = rpc->dozing = rpc->kick = -1;
    rpc->next_deadline = INT64_MAX;
    atomic_store(&rpc->timeout_ms, 60000); /* what rank 1 shows may be late; later nothing is waited for */
    renew_link();
    atomic_store(&rpc->timeout_ms, 0);
    register_all();
}

/* ---- An input ------------------------------------------------------------------------------------------------------- */

/* Two calls and a value of ours are under way to rank 1, which may answer them. */
static void begin(tr_rpc *rpc, tr_future *calls[3])
{
    rpc->next_id = 0;
    FUZZ_CHECK(tr__refs_start(rpc) == TR_OK || rpc->refs); /* its function stays */
    tr_rpc_call call = {.size = sizeof call, .rpc = rpc, .worker = 1, .function = "echo", .timeout_ms = 1000000,
        .arguments = TR_VALUES(1), .count = 1};
    calls[0] = tr_rpc_async_with(&call);
    tr_rref *there = tr_remote_with(&call);
    calls[1] = tr_rref_to_here(there);
    call.arguments = TR_VALUES(there);
    calls[2] = tr_rpc_async_with(&call);
}

/* Makes an optimizer of number 1, here. */
static void make_optimizer(tr__dist_worker *w, tr_tensor *weight)
{
    tr_dist_rule rule = TR_DIST_ADAM(.lr = 0.1);
    double settings[TR__DIST_SETTINGS];
    size_t bytes = (size_t)tr__dist_rule_settings(&rule, settings) * sizeof *settings;
    tr_value result, values[] = {tr_value_i64(rule.kind), tr_value_bytes((tr_bytes){settings, bytes}), tr_value_string("0"),
        tr_value_rref(tr_rref_new(w->rpc, tr_value_tensor(weight)))};
    FUZZ_CHECK(tr__dist_obey(w, TR__DIST_MAKE, values, 4, &result) == TR_OK);
}

/* A backward waits for the gradient of what has gone to rank 1. */
static tr_dist_context *begin_backward(tr_rpc *rpc, bool smart)
{
    tr__dist_worker *w = tr__rpc_user(rpc);
    w->dist.next_number = w->next_optimizer = 0;
    tr_tensor *weight = tr_require_grad(tr_ones(TR_SHAPE(3)));
    make_optimizer(w, weight);
    tr_dist_context *c = tr_dist_context_new(rpc);
    tr_tensor *y = tr_mul(weight, weight), *loss = tr_sum(y), *one = tr_ones(loss->shape);
    tr_rpc_call call = {.size = sizeof call, .rpc = rpc, .worker = 1, .function = "echo", .timeout_ms = 1000000,
        .arguments = &(tr_value){TR_VALUE_TENSOR, {.tensor = y}}, .count = 1};
    (void)!tr_status_of(tr_rpc_async_with(&call));
    FUZZ_CHECK(tr__dist_begin(c, &loss, &one, 1, smart, false, 0) == TR_OK);
    return c;
}

static void end_backward(tr_rpc *rpc, tr_dist_context *c)
{
    tr__dist_worker *w = tr__rpc_user(rpc);
    tr_dist_context_end(c);
    tr__dist_gone(&w->dist, 1, "the input has ended");
    FUZZ_CHECK(!w->dist.contexts);
    tr__dist_owner_end(w);
}

static void serve_all(tr_rpc *rpc)
{
    for (tr__rpc_inbound *m; (m = rpc->first);) {
        rpc->first = m->next;
        if (!m->next) rpc->last = NULL;
        m->next = NULL;
        atomic_fetch_sub(&rpc->queued, 1);
        tr__rpc_serve(rpc, m);
    }
}

/* All frames are sound, and as long as they say, the last one as long as there are bytes. */
static void put_right(uint8_t *bytes, size_t count)
{
    for (size_t at = 0, left; at + sizeof(tr__rpc_frame) <= count;) {
        tr__rpc_frame f;
        memcpy(&f, bytes + at, sizeof f);
        left = count - at - sizeof f;
        f.magic = TR__RPC_MAGIC;
        f.version = TR__RPC_VERSION;
        f.type = (uint8_t)(1 + (f.type + 6) % 7);
        f.pieces = 0;
        f.payload = 0;
        if (f.body > left) f.body = (uint32_t)left;
        memcpy(bytes + at, &f, sizeof f);
        at += sizeof f + f.body;
    }
}

/* Where an input says 1, 2 or 3, the places of pieces have the number of a block. */
static void name_blocks(uint8_t *bytes, size_t count)
{
    for (size_t at = 0; at + sizeof(tr__rpc_frame) <= count;) {
        tr__rpc_frame f;
        tr__rpc_place place;
        memcpy(&f, bytes + at, sizeof f);
        at += sizeof f + f.body;
        if (f.pieces != 1 || at + sizeof place > count) continue; /* `at` stays far from its end: a body has 32 bits */
        memcpy(&place, bytes + at, sizeof place);
        if (place.segment >= 1 && place.segment <= BLOCKS) place.segment = world.blocks[place.segment - 1];
        else if (place.segment == BLOCKS + 1) place.segment = world.taken | TR__RPC_YOURS;
        memcpy(bytes + at, &place, sizeof place);
        at += sizeof place + (place.segment || place.bytes > count ? 0 : place.bytes);
    }
}

static void write_ring(const uint8_t *bytes, size_t count, bool at_end, bool too_much)
{
    tr__shm_channel *r = world.ring;
    uint64_t begin = at_end ? TR__SHM_STREAM - LAST : 0;
    for (size_t i = 0; i < count; i++) r->data[(begin + i) % TR__SHM_STREAM] = (char)bytes[i];
    atomic_store(&r->read, begin);
    atomic_store(&r->written, begin + (too_much ? TR__SHM_STREAM + count : count));
}

static void read_ring(tr_rpc *rpc, uint8_t *bytes, size_t count, uint8_t how)
{
    if (how & 8) put_right(bytes, count);
    name_blocks(bytes, count);
    write_ring(bytes, count, how & 2, (how & 12) == 4);
    tr__rpc_read_rest(rpc, &rpc->links[1]);
    serve_all(rpc);
    renew_link();
}

static void read_stream(tr_rpc *rpc, const uint8_t *bytes, size_t count)
{
    int ends[2];
    tr__rpc_link *link = &rpc->links[1];
    tr__link_free(link);
    rpc->watch = epoll_create1(EPOLL_CLOEXEC);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    tr__wire wire = {.socket = ends[0]};
    FUZZ_CHECK(tr__link_connect(rpc, link, &wire) == TR_OK);
    close(rpc->watch);
    rpc->watch = -1;
    FUZZ_CHECK(send(ends[1], bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
    tr__link_ready(link, EPOLLIN);
    tr__rpc_read_rest(rpc, &rpc->links[1]);
    serve_all(rpc);
    close(ends[1]);
    tr__link_free(link);
    close(ends[0]);
    renew_link();
}

static void end(tr_rpc *rpc, tr_future *const calls[3])
{
    tr__rpc_fail_calls(rpc, 1, rpc->links[1].why);
    FUZZ_CHECK(rpc->call_count == 0 && rpc->links[1].calls == 0 && rpc->links[1].charged == 0);
    for (int i = 0; i < 3; i++) {
        FUZZ_CHECK(tr_future_done(calls[i]));
        FUZZ_CHECK(tr_future_wait(calls[i]) == TR_OK || tr_error_message()[0]);
    }
    rpc->ended = false;
    rpc->clock_rung = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2) return 0;
    start();
    tr_rpc *rpc = world.rpc;
    tr_future *calls[3];
    tr_scope_push();
    begin(rpc, calls);
    tr_dist_context *context = begin_backward(rpc, bytes[0] & 16);
    uint8_t *copy = fuzz_copy(bytes + 1, count - 1);
    if (bytes[0] & 1)
        read_stream(rpc, copy, count - 1);
    else
        read_ring(rpc, copy, count - 1, bytes[0]);
    free(copy);
    end_backward(rpc, context);
    end(rpc, calls);
    tr_scope_pop();
    tr__refs_free(rpc);
    return 0;
}
