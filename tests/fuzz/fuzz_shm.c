/*
 * What a rank of the same host may do after the handshake: its control segment, the messages on its socket with the memory
 * that they show, and the stream of its sends. A real transport of rank 0 of 2 runs a collective, a send and a receive
 * against memory that nobody writes: its peer has made the same call and goes along with everything, but for what the input
 * changes. The reader must neither crash nor read or write beyond what it was shown, and ends within its timeouts.
 *
 * The first byte says which collective, the second how long it is, which parts of what the peer shows are shared, whether ours
 * are, and whether ranks may read each other's private memory (that of the peer is not there). Then follow pieces: where to
 * (control segment, stream, socket), an offset in two bytes, a length, so many bytes.
 */
/* fuzz: 600, soak: 100000 */
#include "fuzz.h"

#include "base/clock.h"
#include "comm/p2p/p2p.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TIMEOUT_MS = 10, HANG_MS = 20000, SEGMENT = 7, STREAM_ID = 9, LONG = 40000, AREA = TR__SHM_RING * TR__SHM_CHUNK };

typedef struct peer {
    tr__failure *failure;
    tr__shm *t;
    tr__p2p *p2p;
    tr__shm_control *control; /* theirs, */
    tr__endpoint_page *page;  /* and of their endpoint */
    int socket;               /* their end */
    tr__shm_channel *stream;
    tr_collective c;
    int64_t counts[2], offsets[2];
    float *in, *out; /* ours */
    bool shared;     /* they are */
} peer;

/* ---- Inputs -------------------------------------------------------------------------------------------------------- */

static size_t add(uint8_t *bytes, size_t used, int where, size_t offset, const void *data, size_t count)
{
    bytes[used++] = (uint8_t)where;
    bytes[used++] = (uint8_t)(offset & 0xff);
    bytes[used++] = (uint8_t)(offset >> 8);
    bytes[used++] = (uint8_t)count;
    memcpy(bytes + used, data, count);
    return used + count;
}

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static const uint64_t words[] = {0, 1, 2, 3, UINT64_MAX, INT64_MAX, 1u << 20, UINT32_MAX, 0x0200000000u, 64};
    static const size_t places[] = {offsetof(tr__shm_control, gave_up), offsetof(tr__shm_control, stuck),
        offsetof(tr__shm_control, filled), offsetof(tr__shm_control, staging), offsetof(tr__shm_control, done),
        offsetof(tr__shm_control, transfers), offsetof(tr__shm_control, transfer),
        offsetof(tr__shm_control, slots[1].entered), offsetof(tr__shm_control, slots[1].call.what),
        offsetof(tr__shm_control, slots[1].call.count), offsetof(tr__shm_control, slots[1].in),
        offsetof(tr__shm_control, slots[1].in.offset), offsetof(tr__shm_control, slots[1].longest),
        offsetof(tr__shm_control, slots[1].file), offsetof(tr__shm_control, blocks[2])};
    size_t used = 2, value = number / 7 % (sizeof words / sizeof *words);
    bytes[0] = (uint8_t)number;
    bytes[1] = (uint8_t)(number >> 8);
    if (number % 5)
        used = add(bytes, used, 0, places[number / 3 % (sizeof places / sizeof *places)], &words[value], sizeof *words);
    if (number % 3 == 0) {
        tr__p2p_frame f = {.magic = TR__P2P_MAGIC, .type = (uint8_t)(1 + number / 16 % 8), .count = (int64_t)words[value],
            .id = number / 32 % 3, .taken = number / 256 % 4 ? 0 : words[number / 5 % 10], .held = number / 6 % 2,
            .place = {number % 2 ? SEGMENT : 0, words[number % 10]}};
        used = add(bytes, used, 1, 0, &f, sizeof f);
    }
    if (number % 4 == 0) {
        tr__shm_message m = {.magic = TR__SHM_MAGIC, .type = TR__SHM_SEGMENT + number / 8 % 7, .rank = 1,
            .group = number % 16 / 4 ? 1 : 77, .id = SEGMENT + number / 64 % 3, .bytes = words[value]};
        used = add(bytes, used, 2, number / 128 % 3, &m, offsetof(tr__shm_message, cookie));
    }
    if (number % 8 == 7) { /* a long buffer that is nowhere, where addresses count */
        static const size_t shown[] = {offsetof(tr__shm_control, staging), offsetof(tr__shm_control, slots[1].in),
            offsetof(tr__shm_control, slots[1].out)};
        bytes[1] |= 1 | 16;
        used = add(bytes, used, 0, shown[number / 9 % 3], (uint64_t[2]){0, 0}, 2 * sizeof(uint64_t));
    }
    return used;
}

/* ---- The peer ------------------------------------------------------------------------------------------------------ */

/* Shows memory of `bytes`, which may not be as long as the message says. */
static void *show(const peer *p, const tr__shm_message *message, size_t bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(memory != MAP_FAILED);
    ssize_t sent = tr__shm_send(p->socket, message, fd);
    (void)sent; /* the socket is full: the message is lost */
    close(fd);
    return memory;
}

static tr_collective choose(peer *p, uint8_t which, uint8_t how)
{
    tr_collective_kind kind = which % TR_COLLECTIVE_COUNT;
    if (kind == TR_SEND || kind == TR_RECV) kind = TR_ALL_REDUCE;
    int64_t count = kind == TR_BARRIER ? 0 : how & 1 ? LONG : how & 2 ? 5 : 700;
    p->counts[0] = p->counts[1] = count;
    p->offsets[1] = count;
    tr_collective given = {.size = sizeof given, .kind = kind, .in = p->in, .out = p->out, .count = count,
        .root = how >> 2 & 1, .timeout_ms = TIMEOUT_MS, .file = "fuzz.c", .line = 7};
    if (tr__kind_of(kind)->variable) {
        given.in_counts = given.out_counts = p->counts;
        given.in_offsets = given.out_offsets = p->offsets;
    }
    return given;
}

/* The peer's control segment, when it has made the same call and is ahead in everything. */
static void go_along(const peer *p, uint8_t how)
{
    tr__shm_control *theirs = p->control;
    uint32_t way = how & 1 ? (how & 8 ? TR__SHM_PLACED : 0) : TR__SHM_INLINED;
    tr__shm_slot *slot = &theirs->slots[1];
    tr__signature s;
    *theirs = (tr__shm_control){.magic = TR__SHM_MAGIC};
    tr__signature_of(&p->c, 2, 1, &s);
    tr__call_write(&slot->call, slot->file, sizeof slot->file, &p->c, way);
    slot->in = slot->out = (tr__shm_place){SEGMENT, 64};
    if (tr__kind_of(p->c.kind)->variable) {
        atomic_store(&slot->layout, p->c.kind == TR_ALL_GATHER_V ? s.layout : 0);
        slot->longest = p->c.count;
        for (int i = 0; i < 2; i++) tr__shm_table(theirs, 2, 1)[i] = (tr__shm_block){0, p->c.count};
    }
    atomic_store(&theirs->staging, SEGMENT);
    atomic_store(&theirs->filled, 1u << 20);
    atomic_store(&theirs->done, 1u << 20);
    atomic_store(&slot->entered, 1);
}

static void say(peer *p, const uint8_t *bytes, size_t count)
{
    for (size_t at = 0; at + 4 <= count;) {
        size_t offset = bytes[at + 1] | (size_t)bytes[at + 2] << 8, length = bytes[at + 3];
        int where = bytes[at] % 3;
        at += 4;
        if (length > count - at) length = count - at;
        size_t written = atomic_load(&p->stream->written);
        if (where == 0 && offset + length <= tr__shm_control_bytes(2))
            memcpy((char *)p->control + offset, bytes + at, length);
        if (where == 1 && written + length <= TR__SHM_STREAM) {
            memcpy(p->stream->data + written, bytes + at, length);
            atomic_store(&p->stream->written, written + length);
        }
        if (where == 2) {
            tr__shm_message message = {0};
            memcpy(&message, bytes + at, length < sizeof message ? length : sizeof message);
            munmap(show(p, &message, 4096 << offset % 10), 4096 << offset % 10);
        }
        at += length;
    }
}

/* ---- Our rank ------------------------------------------------------------------------------------------------------ */

static void make_peer(peer *p, uint8_t how)
{
    int ends[2];
    tr__endpoint_record record;
    tr__member member = {.group = "fuzz", .world_size = 2, .timeout_ms = TIMEOUT_MS, .report_ms = HANG_MS,
        .unexpected_bytes = 1 << 20};
    p->failure = tr__failure_new();
    FUZZ_CHECK(p->failure);
    FUZZ_CHECK(tr__shm_new(&member, p->failure, &record, &p->t) == TR_OK);
    FUZZ_CHECK(tr__p2p_new(&member, p->failure, p->t, NULL, &p->p2p) == TR_OK);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    FUZZ_CHECK(posix_memalign((void **)&p->control, TR__CACHE_LINE, tr__shm_control_bytes(2)) == 0);
    p->page = calloc(1, sizeof *p->page + 2 * sizeof *p->page->counts);
    FUZZ_CHECK(p->page);
    p->t->peers[1].link->socket = ends[0];
    p->t->peers[1].link->page = p->page;
    p->t->peers[1].control = p->control;
    p->socket = ends[1];
    p->t->endpoint->crosses = how & 16;
    p->shared = how & 32;
    p->in = p->shared ? tr_shared_alloc(2 * LONG * sizeof *p->in) : calloc(2 * LONG, sizeof *p->in);
    p->out = p->shared ? tr_shared_alloc(2 * LONG * sizeof *p->out) : calloc(2 * LONG, sizeof *p->out);
    FUZZ_CHECK(p->in && p->out);
}

static tr_work *start(const peer *p, tr_collective_kind kind, void *memory, int64_t count)
{
    tr_work *work = tr__object_new(&tr__work_type);
    work->collective = (tr_collective){.size = sizeof(tr_collective), .kind = kind, .in = memory, .out = memory,
        .count = count, .peer = 1, .timeout_ms = TIMEOUT_MS, .file = "fuzz.c", .line = 9};
    tr__p2p_start(p->p2p, work, false);
    return work;
}

static void run(peer *p)
{
    float received[4];
    tr_work *gets = start(p, TR_RECV, received, 4), *gives = start(p, TR_SEND, p->in, LONG);
    tr_status status = tr__shm_run(p->t, &p->c, 1);
    FUZZ_CHECK(status == TR_OK || tr_error_message()[0]);
    status = tr_wait(gets);
    FUZZ_CHECK(status == TR_OK || tr_error_message()[0]);
    status = tr_wait(gives);
    FUZZ_CHECK(status == TR_OK || tr_error_message()[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    TR_SCOPE;
    peer p = {0};
    if (count < 2) return 0;
    int64_t began = tr__now_ns();
    make_peer(&p, bytes[1]);
    p.c = choose(&p, bytes[0], bytes[1]);
    go_along(&p, bytes[1]);
    tr__shm_message segment = {.magic = TR__SHM_MAGIC, .type = TR__SHM_SEGMENT, .rank = 1, .id = SEGMENT, .bytes = AREA};
    tr__shm_message stream = {.magic = TR__SHM_MAGIC, .type = TR__SHM_STREAMS, .rank = 1, .group = p.t->attachment->id,
        .id = STREAM_ID, .bytes = sizeof *p.stream};
    munmap(show(&p, &segment, AREA), AREA);
    p.stream = show(&p, &stream, sizeof *p.stream);
    say(&p, bytes + 2, count - 2);
    FUZZ_CHECK(tr__shm_begin(p.t) == TR_OK);
    run(&p);
    close(p.socket);
    munmap(p.stream, sizeof *p.stream);
    tr__p2p_end(p.p2p);
    tr__shm_close(p.t);
    tr__failure_free(p.failure);
    free(p.control);
    free(p.page);
    if (!p.shared) free(p.in), free(p.out);
    else tr_shared_free(p.in), tr_shared_free(p.out);
    FUZZ_CHECK(tr__now_ns() - began < HANG_MS * (int64_t)1000000);
    return 0;
}
