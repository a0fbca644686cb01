/*
 * The nccl backend on the emulated GPUs, with the double of NCCL: every collective of every type, on the rank's GPU,
 * in the host's memory and on another GPU, against the native backend; the order of streams; each call that fails in
 * its turn; and what a rank is told where NCCL cannot be used. Ranks are threads.
 */
#include "comm/backend/nccl_library.h"
#include "comm/collective.h"
#include "device/device.h"
#include "files.h"
#include "net/store/store.h"

#include <trireme/trireme.h>

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, BLOCK = 37, GAP = 11, BYTES = RANKS * BLOCK * 8 };

#define TRY(expression)                                    \
    do {                                                   \
        tr_status try_ = (expression);                     \
        if (try_ != TR_OK) return try_;                    \
    } while (0)

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

typedef struct rank {
    int number, ranks, timeout_ms;
    tr_store *store;
    tr_status (*body)(struct rank *r);
    bool wrong;          /* found the wrong numbers */
    tr_status status;
    char message[600];
} rank;

static void *run_rank(void *arg)
{
    rank *r = arg;
    TR_SCOPE;
    r->status = r->body(r);
    if (r->status != TR_OK) snprintf(r->message, sizeof r->message, "%s", tr_error_message());
    return NULL;
}

static const tr__store_ops *store_ops; /* of the ranks' store; NULL: its own */

static void run_ranks(rank *ranks, int count, tr_status (*body)(rank *), int timeout_ms)
{
    TR_SCOPE;
    pthread_t threads[RANKS];
    tr_store *store = tr_store_memory();
    if (store_ops) store->ops = store_ops;
    for (int i = 0; i < count; i++) {
        ranks[i] = (rank){.number = i, .ranks = count, .store = store, .body = body, .timeout_ms = timeout_ms};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static void must_pass(const rank *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i].status != TR_OK) fail_msg("rank %d: %s", i, ranks[i].message);
}

static tr_group *join(const rank *r, const char *backend)
{
    return tr_join(.store = r->store, .rank = r->number, .world_size = r->ranks, .backend = backend,
        .name = backend, .timeout_ms = r->timeout_ms);
}

/* ---- Every collective -------------------------------------------------------------------------------------------- */

/* Small whole numbers, whose sums, averages and products every type has. */
static void put(char *to, tr_dtype dtype, int at, int value)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500};
    float f32 = (float)value;
    switch (dtype) {
    case TR_F32: ((float *)(void *)to)[at] = f32; break;
    case TR_F64: ((double *)(void *)to)[at] = value; break;
    case TR_F16: ((uint16_t *)(void *)to)[at] = f16[value]; break;
    case TR_BF16: {
        uint32_t bits;
        memcpy(&bits, &f32, 4);
        ((uint16_t *)(void *)to)[at] = (uint16_t)(bits >> 16);
        break;
    }
    case TR_I64: ((int64_t *)(void *)to)[at] = value; break;
    case TR_I32: ((int32_t *)(void *)to)[at] = value; break;
    case TR_BOOL: to[at] = (char)(value & 1); break;
    default: to[at] = (char)value;
    }
}

typedef struct arrays {
    int64_t in_counts[RANKS], in_offsets[RANKS], out_counts[RANKS], out_offsets[RANKS];
} arrays;

/* A call of the kind: blocks of the _V kinds have different lengths and gaps between them. */
static tr_collective call_of(tr_collective_kind kind, tr_dtype dtype, tr_reduce_op op, int self, arrays *a)
{
    tr_collective c = {.size = sizeof c, .kind = kind, .count = BLOCK, .dtype = dtype, .op = op, .root = 1};
    if (!tr__kind_of(kind)->variable) return c;
    bool between_all = kind == TR_ALL_TO_ALL_V;
    for (int i = 0; i < RANKS; i++) {
        a->in_counts[i] = between_all ? 1 + 2 * self + i : 2 + i;
        a->out_counts[i] = between_all ? 1 + 2 * i + self : 2 + i;
        a->in_offsets[i] = a->out_offsets[i] = i * GAP;
    }
    c.count = between_all ? 0 : 2 + self;
    if (kind == TR_SCATTER_V || between_all) c.in_counts = a->in_counts, c.in_offsets = a->in_offsets;
    if (kind != TR_SCATTER_V) c.out_counts = a->out_counts, c.out_offsets = a->out_offsets;
    return c;
}

/* Runs the call on buffers at a device, and brings the result back. */
static tr_status run_at(tr_group *group, tr_device device, tr_collective c, const char *in, char *out)
{
    void *there[2];
    const char *given[] = {in, out};
    for (int i = 0; i < 2; i++) {
        TRY(tr__device_allocate(device, BYTES, &there[i]));
        TRY(tr__device_copy(device, there[i], tr_cpu(0), given[i], BYTES));
    }
    c.in = there[0];
    c.out = there[1];
    c.device = device;
    tr_status status = tr_run_collective(group, &c);
    if (status == TR_OK) status = tr__device_copy(tr_cpu(0), out, device, there[1], BYTES);
    for (int i = 0; i < 2; i++) tr__device_release(device, there[i], BYTES);
    return status;
}

static tr_status compare(rank *r, tr_group *native, tr_group *nccl, tr_device device, const tr_collective *c)
{
    static const char *const ops[] = {"sum", "avg", "min", "max", "prod"};
    char in[BYTES], expected[BYTES], got[BYTES], name[16];
    for (int i = 0; i < RANKS * BLOCK; i++) put(in, c->dtype, i, r->number + i % 3 + 1);
    memset(expected, c->dtype == TR_BOOL ? 1 : 0x3d, BYTES);
    memcpy(got, expected, BYTES);
    TRY(run_at(native, tr_cpu(0), *c, in, expected));
    TRY(run_at(nccl, device, *c, in, got));
    if (!tr__collective_gets(c, r->number) || memcmp(expected, got, BYTES) == 0) return TR_OK;
    return tr_fail(TR_INTERNAL, "%s of %s, %s, on %s: not what the native backend gives", tr__kind_name(c->kind),
        tr_dtype_name(c->dtype), ops[c->op], tr_device_name(device, name));
}

/* A block comes where another one is still to be sent from. */
static tr_status swap_in_place(rank *r, tr_group *nccl)
{
    tr_device device = tr_cuda(r->number);
    unsigned char own[BYTES] = {0}, got[BYTES];
    void *there;
    TRY(tr__device_allocate(device, BYTES, &there));
    tr_status status = TR_OK;
    for (int i = 0; i < RANKS * BLOCK; i++) own[i] = (unsigned char)(16 * r->number + i / BLOCK);
    for (int turn = 0; turn < 30 && status == TR_OK; turn++) {
        status = tr__device_copy(device, there, tr_cpu(0), own, BYTES);
        if (status == TR_OK) status = tr_all_to_all(nccl, there, there, BLOCK, .dtype = TR_U8, .device = device);
        if (status == TR_OK) status = tr__device_copy(tr_cpu(0), got, device, there, BYTES);
        for (int i = 0; i < RANKS * BLOCK && status == TR_OK; i++)
            if (got[i] != 16 * (i / BLOCK) + r->number)
                status = tr_fail(TR_INTERNAL, "all_to_all in place: block %d has %d", i / BLOCK, got[i]);
    }
    tr__device_release(device, there, BYTES);
    return status;
}

static tr_status all_kinds(rank *r)
{
    tr_group *native = join(r, "native"), *nccl = join(r, "nccl");
    TRY(tr_status_of(native));
    TRY(tr_status_of(nccl));
    for (int place = 0; place < 3; place++) {
        tr_device device = place == 0 ? tr_cuda(r->number) : place == 1 || r->number ? tr_cpu(0) : tr_cuda(3);
        for (int kind = 0; kind < TR_SEND; kind++)
            for (int dtype = 0; dtype < TR_DTYPE_COUNT; dtype++)
                for (int op = 0; op < (tr__kind_of((tr_collective_kind)kind)->reduces ? TR_PROD + 1 : 1); op++) {
                    arrays a;
                    tr_collective c = call_of((tr_collective_kind)kind, (tr_dtype)dtype, (tr_reduce_op)op, r->number,
                        &a);
                    bool narrow = dtype == TR_I32 || dtype == TR_U8;
                    if (op == TR_AVG && narrow && compare(r, native, nccl, device, &c) != TR_UNSUPPORTED)
                        return tr_fail(TR_INTERNAL, "NCCL may average %s", tr_dtype_name((tr_dtype)dtype));
                    if (op == TR_AVG && (narrow || dtype == TR_BOOL)) continue;
                    TRY(compare(r, native, nccl, device, &c));
                }
        TRY(tr_barrier(nccl));
    }
    TRY(swap_in_place(r, nccl));
    tr_collective bits = {.size = sizeof bits, .kind = TR_ALL_REDUCE, .count = 1, .dtype = TR_I32, .op = TR_BXOR};
    char in[BYTES] = {0}, out[BYTES];
    if (run_at(nccl, tr_cuda(r->number), bits, in, out) != TR_UNSUPPORTED) return tr_fail(TR_INTERNAL, "bxor");
    TRY(tr_leave(nccl));
    return tr_leave(native);
}

static void collectives_give_what_the_native_backend_gives(void **state)
{
    (void)state;
    rank ranks[RANKS];
    run_ranks(ranks, RANKS, all_kinds, 60000);
    must_pass(ranks, RANKS);
}

/* ---- Messages and groups ----------------------------------------------------------------------------------------- */

/* Sums 1, 2, … of the group's ranks on this rank's GPU. */
static tr_status sum_on(tr_group *group, int gpu, bool *wrong)
{
    TR_SCOPE;
    int n = tr_world_size(group);
    tr_tensor *x = tr_full(tr_rank(group) + 1, TR_SHAPE(5000), .device = tr_cuda(gpu));
    TRY(tr_all_reduce_tensor(group, x, TR_SUM));
    *wrong = tr_item(tr_min(x)) != n * (n + 1) / 2 || tr_item(tr_max(x)) != n * (n + 1) / 2;
    return TR_OK;
}

/* A ring of two messages, received in the other order: one from the GPU to the host, one the other way. */
static tr_status exchange(tr_group *group, int gpu)
{
    TR_SCOPE;
    enum { LONG = 30000 };
    int self = tr_rank(group), n = tr_world_size(group), to = (self + 1) % n, from = (self + n - 1) % n;
    tr_device device = tr_cuda(gpu);
    float first[LONG], got[LONG], second[LONG];
    void *there[2];
    for (int i = 0; i < LONG; i++) first[i] = (float)(self + i), second[i] = (float)(self * i);
    for (int i = 0; i < 2; i++) TRY(tr__device_allocate(device, sizeof first, &there[i]));
    TRY(tr__device_copy(device, there[0], tr_cpu(0), first, sizeof first));
    tr_work *sent[] = {tr_post(group, &TR_COLLECTIVE(TR_SEND, .in = there[0], .count = LONG, .peer = to,
        .device = device)),
        tr_post(group, &TR_COLLECTIVE(TR_SEND, .in = second, .count = LONG, .peer = to, .tag = 1))};
    TRY(tr_run_collective(group, &TR_COLLECTIVE(TR_RECV, .out = got, .count = LONG, .peer = from)));
    TRY(tr_run_collective(group, &TR_COLLECTIVE(TR_RECV, .out = there[1], .count = LONG, .peer = from, .tag = 1,
        .device = device)));
    for (int i = 0; i < 2; i++) TRY(tr_wait(sent[i]));
    TRY(tr__device_copy(tr_cpu(0), second, device, there[1], sizeof second));
    for (int i = 0; i < 2; i++) tr__device_release(device, there[i], sizeof first);
    for (int i = 0; i < LONG; i++)
        if (got[i] != (float)(from + i) || second[i] != (float)(from * i))
            return tr_fail(TR_INTERNAL, "a message of other numbers");
    return TR_OK;
}

static tr_status (*real_copy_peer)(int, tr_device_stream *, void *, int, const void *, size_t);
static atomic_int peer_copies;

static tr_status counted_copy_peer(int to, tr_device_stream *stream, void *memory, int from, const void *source,
    size_t bytes)
{
    peer_copies++;
    return real_copy_peer(to, stream, memory, from, source, bytes);
}

/* Ranks 2 and 1 of three, in that order: each stays on its GPU. */
static tr_status groups(rank *r)
{
    bool wrong[3] = {false, false, false};
    tr_group *world = join(r, "nccl");
    TRY(tr_status_of(world));
    TRY(exchange(world, r->number));
    tr_group *two = tr_group_split(world, r->number ? 5 : -1, -r->number);
    if (two) TRY(tr_status_of(two));
    if (two && tr_rank(two) != 2 - r->number) return tr_fail(TR_INTERNAL, "rank %d of the part", tr_rank(two));
    if (two) TRY(sum_on(two, r->number, &wrong[0]));
    TRY(sum_on(world, r->number, &wrong[1]));
    tr_group *listed = tr_group_new(world, (int[]){2, 0}, 2);
    if (listed) TRY(sum_on(listed, r->number, &wrong[2]));
    if (listed) TRY(tr_leave(listed));
    if (two) TRY(tr_leave(two));
    tr_group *alone = tr_group_split(world, r->number, 0);
    TRY(sum_on(alone, r->number, &r->wrong));
    TRY(tr_leave(alone));
    r->wrong = r->wrong || wrong[0] || wrong[1] || wrong[2];
    return tr_leave(world);
}

/* A store that has the id of a channel before it answers, some times too late. */
static const tr__store_ops *real_ops;
static atomic_int late, longest_ms;

static tr_status change_late(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    TRY(real_ops->change(store, key, c, timeout_ms, value, bytes));
    if (!strstr(key, "nccl-from-")) return TR_OK;
    if (timeout_ms > longest_ms) longest_ms = timeout_ms;
    return late++ < 5 ? tr_fail(TR_TIMEOUT, "the store has not answered") : TR_OK;
}

static tr_status only_exchange(rank *r)
{
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    TRY(exchange(group, r->number));
    return tr_leave(group);
}

static void a_channel_is_made_with_a_store_that_is_late(void **state)
{
    (void)state;
    TR_SCOPE;
    rank ranks[RANKS];
    real_ops = tr_store_memory()->ops;
    tr__store_ops ops = *real_ops;
    ops.change = change_late;
    store_ops = &ops;
    run_ranks(ranks, 2, only_exchange, 60000);
    store_ops = NULL;
    must_pass(ranks, 2);
    assert_int_equal(late, 7);            /* for two channels */
    assert_in_range(longest_ms, 1, 2000); /* the group's lock is held meanwhile */
}

static __typeof__(ncclCommSplit) *real_split;
static atomic_int splits;
static ncclResult_t counted_split(ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *config)
{
    splits++;
    return real_split(comm, color, key, part, config);
}

static void messages_and_groups_stay_on_the_ranks_gpus(void **state)
{
    (void)state;
    rank ranks[RANKS];
    tr_device_table *table = (tr_device_table *)tr__plugin(TR_CUDA);
    real_copy_peer = table->copy_peer;
    table->copy_peer = counted_copy_peer;
    const tr__nccl_library *found;
    assert_int_equal(tr__nccl_open(&found), TR_OK);
    tr__nccl_library *library = (tr__nccl_library *)found;
    real_split = library->ncclCommSplit;
    assert_non_null(real_split);
    for (int older = 0; older < 2; older++) { /* than 2.18, which has no split */
        library->ncclCommSplit = older ? NULL : counted_split;
        run_ranks(ranks, RANKS, groups, 60000);
        must_pass(ranks, RANKS);
        for (int i = 0; i < RANKS; i++) assert_false(ranks[i].wrong);
        assert_int_equal(splits, 3 * RANKS);
    }
    library->ncclCommSplit = real_split;
    table->copy_peer = real_copy_peer;
    assert_int_equal(peer_copies, 0);
}

/* ---- The order of streams ---------------------------------------------------------------------------------------- */

static tr_status some_sums(rank *r)
{
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    for (int i = 0; i < 20; i++) {
        bool wrong;
        TRY(sum_on(group, r->number, &wrong));
        r->wrong |= wrong;
    }
    return tr_leave(group);
}

static tr_status no_wait(int index, tr_device_stream *stream, tr_device_event *event)
{
    (void)index, (void)stream, (void)event;
    return TR_OK;
}

static void a_removed_wait_for_an_event_gives_wrong_numbers(void **state)
{
    (void)state;
    rank ranks[RANKS];
    run_ranks(ranks, 2, some_sums, 60000);
    must_pass(ranks, 2);
    assert_false(ranks[0].wrong || ranks[1].wrong);
    tr_device_table *table = (tr_device_table *)tr__plugin(TR_CUDA);
    tr_status (*wait)(int, tr_device_stream *, tr_device_event *) = table->stream_wait;
    table->stream_wait = no_wait;
    run_ranks(ranks, 2, some_sums, 60000);
    table->stream_wait = wait;
    must_pass(ranks, 2);
    assert_true(ranks[0].wrong && ranks[1].wrong);
}

/* ---- What fails -------------------------------------------------------------------------------------------------- */

static void fail_call(const char *function, int nth)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    assert_non_null(library);
    void (*plan)(const char *, int) = (void (*)(const char *, int))dlsym(library, "tr_nccl_double_fail");
    assert_non_null(plan);
    plan(function, nth);
    dlclose(library);
}

static tr_status a_bit_of_all(rank *r)
{
    char in[BYTES] = {0}, out[BYTES] = {0};
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    TRY(sum_on(group, r->number, &r->wrong));
    arrays a;
    for (int kind = 0; kind < TR_SEND; kind++) {
        if (tr__kind_of((tr_collective_kind)kind)->variable) continue;
        TRY(run_at(group, tr_cuda(r->number), call_of((tr_collective_kind)kind, TR_F32, TR_SUM, r->number, &a), in,
            out));
    }
    TRY(exchange(group, r->number));
    tr_group *part = tr_group_split(group, 0, -r->number);
    TRY(tr_status_of(part));
    TRY(sum_on(part, r->number, &r->wrong));
    TRY(tr_leave(part));
    return tr_leave(group);
}

static void each_call_that_fails_is_told(void **state)
{
    (void)state;
    static const char *const functions[] = {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError",
        "ncclAsyncError", "ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
        "ncclGroupStart", "ncclCommSplit",
        "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclKernel"};
    rank ranks[RANKS];
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        for (int nth = 1; nth <= 2; nth++) {
            fail_call(functions[f], nth);
            run_ranks(ranks, 2, a_bit_of_all, 3000);
            fail_call(functions[f], 0);
            bool told = false;
            for (int i = 0; i < 2; i++) {
                const rank *r = &ranks[i];
                char culprit[32];
                snprintf(culprit, sizeof culprit, "rank %d failed: ", 1 - i);
                bool own = strstr(r->message, "was to fail") || strstr(r->message, "unhandled ") ||
                    strstr(r->message, "the network is down");
                bool names = strstr(r->message, culprit) || strstr(r->message, "rank 0 got no id from NCCL");
                bool right = r->status == TR_PEER ? names && own
                    : r->status == TR_TIMEOUT || (own && r->status != TR_OK);
                if (!right || !strstr(r->message, "group 'nccl'"))
                    fail_msg("%s, call %d: rank %d: status %d: %s", functions[f], nth, i, (int)r->status, r->message);
                told |= own && r->status != TR_PEER;
            }
            if (!told) fail_msg("%s, call %d: %s; %s", functions[f], nth, ranks[0].message, ranks[1].message);
        }
    run_ranks(ranks, 2, a_bit_of_all, 60000); /* nothing is left of all that */
    must_pass(ranks, 2);
}

/* A group's communicator that fails when its part is there: in the thread of each rank. */
static __typeof__(ncclCommGetAsyncError) *real_state;
static __typeof__(ncclCommAbort) *real_abort;
static _Thread_local ncclComm_t *place, part;
static atomic_int parts, aborted;

static ncclResult_t watched_split(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config)
{
    place = made;
    return real_split(comm, color, key, made, config);
}

static ncclResult_t state_after_split(ncclComm_t comm, ncclResult_t *state)
{
    ncclResult_t result = real_state(comm, state);
    if (!place || !*place) return result;
    part = *place;
    place = NULL;
    parts++;
    *state = ncclInternalError;
    return result;
}

static ncclResult_t counted_abort(ncclComm_t comm)
{
    aborted += comm == part;
    return real_abort(comm);
}

static tr_status split_in_vain(rank *r)
{
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    tr_status status = tr_status_of(tr_group_split(group, 0, 0));
    (void)!tr_leave(group);
    return status == TR_OK ? tr_fail(TR_INTERNAL, "a group within one that has failed") : TR_OK;
}

static void a_part_of_a_group_that_fails_is_ended(void **state)
{
    (void)state;
    rank ranks[RANKS];
    const tr__nccl_library *found;
    assert_int_equal(tr__nccl_open(&found), TR_OK);
    tr__nccl_library real = *found, *library = (tr__nccl_library *)found;
    real_split = real.ncclCommSplit;
    real_state = real.ncclCommGetAsyncError;
    real_abort = real.ncclCommAbort;
    library->ncclCommSplit = watched_split;
    library->ncclCommGetAsyncError = state_after_split;
    library->ncclCommAbort = counted_abort;
    run_ranks(ranks, 2, split_in_vain, 60000);
    *library = real;
    must_pass(ranks, 2);
    assert_true(parts > 0);
    assert_int_equal(aborted, parts);
}

/* With .check both ranks are told before any data has moved that rank 1 gives one number less, and at once that it
 * gives up. */
static tr_status differ(rank *r)
{
    TR_SCOPE;
    static const char *const names[] = {"differs", "aborts"};
    for (int i = 0; i < 2; i++) {
        tr_group *group = tr_join(.store = r->store, .rank = r->number, .world_size = r->ranks, .backend = "nccl",
            .check = true,
            .name = names[i], .timeout_ms = r->timeout_ms);
        tr_tensor *x = tr_ones(TR_SHAPE(9 - (i == 0 ? r->number : 0)), .device = tr_cuda(r->number));
        TRY(tr_all_reduce_tensor(group, tr_ones(TR_SHAPE(9), .device = tr_cuda(r->number)), TR_SUM));
        /* until then it may still be in the first one */
        if (r->number == 0) TRY(tr_store_set(r->store, names[i], "1", 1));
        if (i == 1 && r->number == 1) {
            void *value;
            size_t bytes;
            TRY(tr_store_get(r->store, names[i], &value, &bytes));
            free(value);
            tr_abort(group, "rank 1 has had enough");
        } else {
            tr_status status = tr_all_reduce_tensor(group, x, TR_SUM);
            if (status != (i ? TR_PEER : TR_MISMATCH) || !strstr(tr_error_message(),
                i ? "rank 1 has had enough" : "f32[8]"))
                return tr_fail(TR_INTERNAL, "%s: status %d: %s", names[i], (int)status, tr_error_message());
        }
        TRY(tr_leave(group));
    }
    return TR_OK;
}

static void calls_that_differ_are_named(void **state)
{
    (void)state;
    rank ranks[RANKS];
    run_ranks(ranks, 2, differ, 60000);
    must_pass(ranks, 2);
}

static tr_status wait_in_vain(rank *r)
{
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    TRY(sum_on(group, r->number, &r->wrong));
    if (r->number == 0) {
        tr_status status = sum_on(group, 0, &r->wrong);
        tr_status later = tr_barrier(group);
        snprintf(r->message, sizeof r->message, "%s", tr_error_message());
        if (later != status) return tr_fail(TR_INTERNAL, "the group is not broken for good: %s", r->message);
    }
    if (r->number == 0 && !strstr(r->message, "rank 0 waited")) return tr_fail(TR_INTERNAL, "%s", r->message);
    (void)!tr_leave(group);
    return TR_OK;
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    (void)state;
    rank ranks[RANKS];
    run_ranks(ranks, 2, wait_in_vain, 3000);
    must_pass(ranks, 2);
    if (!strstr(ranks[0].message, "all_reduce #2") || !strstr(ranks[0].message, "is broken"))
        fail_msg("%s", ranks[0].message);
}

static void name_self(char self[512])
{
    ssize_t length = readlink("/proc/self/exe", self, 511);
    assert_true(length > 0);
    self[length] = 0;
}

/* Rank 1 does not come to a sum in the host's memory. */
static tr_status sum_staged_in_vain(rank *r)
{
    char in[BYTES] = {0}, out[BYTES] = {0};
    tr_status status = TR_TIMEOUT;
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    if (r->number == 0)
        status = run_at(group, tr_cpu(0), TR_COLLECTIVE(TR_ALL_REDUCE, .count = BLOCK, .dtype = TR_F32), in, out);
    (void)!tr_leave(group);
    return status == TR_TIMEOUT ? TR_OK : tr_fail(TR_INTERNAL, "status %d", (int)status);
}

/* In a process that keeps no memory, so that giving back waits for what still writes there. */
static void copies_are_given_back_when_nothing_uses_them(void **state)
{
    (void)state;
    char self[512];
    int ended;
    name_self(self);
    pid_t child = fork();
    if (child == 0) {
        setenv("TRIREME_CUDA_CACHE", "0", 1);
        alarm(60);
        execl(self, self, "staged", (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

/* ---- A process that dies ----------------------------------------------------------------------------------------- */

/* Rank 1: is killed after a collective. */
static tr_status die(rank *r)
{
    tr_group *group = join(r, "nccl");
    TRY(tr_status_of(group));
    TRY(sum_on(group, r->number, &r->wrong));
    raise(SIGKILL);
    return TR_OK;
}

static void a_process_that_dies_is_told(void **state)
{
    (void)state;
    TR_SCOPE;
    char self[512], meet[512];
    bool wrong = true;
    int ended;
    name_self(self);
    snprintf(meet, sizeof meet, "%s", files_path("meet"));
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "die", meet, (char *)NULL);
        _exit(1);
    }
    rank r = {.number = 0, .ranks = 2, .timeout_ms = 60000, .store = tr_store_file(meet)};
    tr_group *group = join(&r, "nccl");
    if (sum_on(group, 0, &wrong) != TR_OK) fail_msg("%s", tr_error_message());
    assert_false(wrong);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended));
    assert_int_equal(sum_on(group, 0, &wrong), TR_PEER);
    if (!strstr(tr_error_message(), "all_reduce #2") || !strstr(tr_error_message(), "rank 1 is gone"))
        fail_msg("%s", tr_error_message());
    assert_int_equal(tr_barrier(group), TR_PEER);
    assert_int_equal(tr_leave(group), TR_OK);
}

/* ---- Where NCCL cannot be used ----------------------------------------------------------------------------------- */

static tr_status only_join(rank *r)
{
    return tr_status_of(join(r, "nccl"));
}

/* What rank 1 of two is told; a machine is a process of its own. */
static void says(const char *emulator, const char *libraries, const char *words)
{
    char command[2048], message[1024], self[512];
    name_self(self);
    snprintf(command, sizeof command, "CUDA_EMULATOR='%s' LD_LIBRARY_PATH='%s' exec '%s' join", emulator, libraries,
        self);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    message[fread(message, 1, sizeof message - 1, child)] = 0;
    assert_int_equal(pclose(child), 0);
    if (!strstr(message, words)) fail_msg("%s: \"%s\" does not say \"%s\"", emulator, message, words);
    if (!strstr(message, "nccl: ") || !strstr(message, "or join with .backend = \"native\", which needs no GPU"))
        fail_msg("%s: \"%s\" does not say what to do", emulator, message);
}

static void errors_say_why_and_what_to_do(void **state)
{
    (void)state;
    const char *libraries = getenv("LD_LIBRARY_PATH");
    files_write("libnccl.so.2", "", 0);
    says("devices=2", files_path("."), "libnccl.so.2 cannot be opened");
    says("devices=0", libraries, "this host has no NVIDIA driver: install one");
    says("fail=cudaGetDeviceCount:1", libraries, "asking how many GPUs there are");
    says("devices=1", libraries, "each rank needs a GPU of its own: ranks 0 and 1 on host ");
    says("devices=1", libraries, "both have GPU 0; start no more ranks there than GPUs");
}

int main(int argc, char **argv)
{
    setenv("TRIREME_PLUGINS", PLUGIN, 1);
    if (argc == 2 && strcmp(argv[1], "join") == 0) {
        rank ranks[RANKS];
        run_ranks(ranks, 2, only_join, 5000);
        printf("%s\n", ranks[1].message);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "staged") == 0) {
        rank ranks[RANKS];
        run_ranks(ranks, 2, sum_staged_in_vain, 2000);
        return ranks[0].status != TR_OK || ranks[1].status != TR_OK;
    }
    if (argc == 3 && strcmp(argv[1], "die") == 0) {
        rank r = {.number = 1, .ranks = 2, .timeout_ms = 60000, .store = tr_store_file(argv[2])};
        return die(&r) != TR_OK;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_give_what_the_native_backend_gives),
        cmocka_unit_test(messages_and_groups_stay_on_the_ranks_gpus),
        cmocka_unit_test(a_channel_is_made_with_a_store_that_is_late),
        cmocka_unit_test(a_removed_wait_for_an_event_gives_wrong_numbers),
        cmocka_unit_test(each_call_that_fails_is_told),
        cmocka_unit_test(a_part_of_a_group_that_fails_is_ended),
        cmocka_unit_test(calls_that_differ_are_named),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(copies_are_given_back_when_nothing_uses_them),
        cmocka_unit_test(a_process_that_dies_is_told),
        cmocka_unit_test(errors_say_why_and_what_to_do),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
