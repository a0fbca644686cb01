/*
 * What comes over the connections between hosts: a real transport of rank 0 of 2, whose peer sends what it likes, hangs
 * up, and is then to be named. The first byte says which collective runs; then follow pieces: a connection, a length in
 * two bytes, so many bytes. Beside the collective waits a receive. One input in sixteen comes through TLS, a quarter in records with
 * checksums, and one in sixteen where such records are expected. One in sixteen is for rank 0 of 12: rank 1 alone is there, and may
 * pass on what others say.
 */
/* fuzz: 3000, soak: 300000 */
#include "fuzz.h"

#include "comm/p2p/p2p.h"

#include <sys/socket.h>

enum { COUNT = 4, MANY = 12 };
static const tr_collective_kind kinds[] = {TR_ALL_REDUCE, TR_BROADCAST, TR_ALL_GATHER, TR_REDUCE_SCATTER, TR_ALL_TO_ALL,
    TR_GATHER, TR_REDUCE, TR_BARRIER};

static tr_collective collective(uint8_t which)
{
    return (tr_collective){.size = sizeof(tr_collective), .kind = kinds[which % 8], .count = which % 8 == 7 ? 0 : COUNT,
        .root = which / 8 % 2, .timeout_ms = 5000, .file = "fuzz.c", .line = 7};
}

static size_t add(uint8_t *bytes, size_t used, int channel, const void *frame, size_t frame_bytes, size_t data)
{
    size_t length = frame_bytes + data;
    bytes[used++] = (uint8_t)channel;
    bytes[used++] = (uint8_t)(length & 0xff);
    bytes[used++] = (uint8_t)(length >> 8);
    memcpy(bytes + used, frame, frame_bytes);
    memset(bytes + used + frame_bytes, 'x', data);
    return used + length;
}

/* A call as rank 1 would make it, a message that it sends, and what it says beside. */
size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    tr_collective c = collective(bytes[0] = (uint8_t)number);
    tr__signature s;
    tr__signature_of(&c, 2, 1, &s);
    size_t used = 1, data = (number / 16 % 3) * COUNT / 2 * sizeof(float);
    for (uint32_t i = 0; i < 1 + number / 64 % 2; i++) {
        tr__tcp_frame f = tr__tcp_frame_of(&s, TR__TCP_DATA, data);
        f.algorithm = (uint8_t)(number / 128 % 5);
        used = add(bytes, used, TR__DATA_CHANNEL, &f, sizeof f, data);
    }
    if (number / 7 % 2) {
        tr__tcp_frame f = tr__tcp_frame_of(&s, TR__TCP_CALL + number / 14 % 3, number % 20);
        f.group = TR__FIRST_GROUP;
        f.origin = 1 + (number / 3) % 2;
        f.number = 1;
        f.waits_for = (int)(number / 42 % 3) - 1;
        used = add(bytes, used, TR__CONTROL_CHANNEL, &f, sizeof f, number % 20);
    }
    if (number / 16 % 16 == 11) { /* of the endpoints' own, of other ranks, too */
        tr__gone_frame gone = {.head = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION,
            .type = (uint8_t)(TR__FRAME_HERE + number / 5 % 6), .origin = (int)(number / 7 % MANY), .number = number % 5},
            .rank = (int)(number % (MANY + 1)), .error = (int)(number / 2 % 2)};
        tr__network_frame f = {.head = gone.head};
        memcpy(&f, &gone, sizeof gone);
        used = add(bytes, used, TR__CONTROL_CHANNEL, &f, sizeof f, 0);
    }
    bool late = number / 11 % 3 == 0; /* announced, and sent without an answer or after it */
    tr__p2p_frame m = {.magic = TR__P2P_MAGIC, .type = late ? TR__P2P_RTS : TR__P2P_EAGER, .dtype = TR_F32, .count = COUNT,
        .tag = (int)(number / 5 % 2), .held = (int)(number / 33 % 2), .id = 1};
    used = add(bytes, used, TR__P2P_CHANNEL, &m, sizeof m, late ? 0 : COUNT * sizeof(float));
    if (number / 22 % 2) return used;
    m.type = (uint8_t)(1 + number / 3 % 8);
    return add(bytes, used, TR__P2P_CHANNEL, &m, sizeof m, number / 44 % 2 ? COUNT * sizeof(float) : 0);
}

static void say(tr__wire *wires, const uint8_t *bytes, size_t count)
{
    for (size_t at = 0; at + 3 <= count;) {
        size_t length = bytes[at + 1] | (size_t)bytes[at + 2] << 8;
        int channel = bytes[at] % TR__CHANNELS;
        at += 3;
        if (length > count - at) length = count - at;
        ssize_t sent = tr__wire_send(&wires[channel], &(struct iovec){(void *)(bytes + at), length}, 1);
        (void)sent; /* what does not fit is lost: as if the peer had hung up before */
        at += length;
    }
}

typedef enum manner { CLEAR, ENCRYPTED, CHECKED, UNCHECKED } manner;

static int world_of(uint8_t which)
{
    return which / 16 == 11 ? MANY : 2;
}

static manner manner_of(uint8_t which)
{
    return which / 16 == 5 ? ENCRYPTED : which / 16 >= 6 && which / 16 < 10 ? CHECKED : which / 16 == 10 ? UNCHECKED : CLEAR;
}

static void connect_wires(tr__wire *ours, tr__wire *theirs, tr__tls_key *key, manner how)
{
    int ends[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    FUZZ_CHECK(tr__wire_open(ours, ends[0], key, TR__TLS_SERVER));
    FUZZ_CHECK(tr__wire_open(theirs, ends[1], key, TR__TLS_CLIENT));
    for (int done = 0, other = 0; done == 0 || other == 0;) {
        done = tr__wire_shake_hands(theirs);
        other = tr__wire_shake_hands(ours);
        FUZZ_CHECK(done >= 0 && other >= 0);
    }
    ours->checked = how == CHECKED || how == UNCHECKED;
    theirs->checked = how == CHECKED;
}

static tr__tcp *connect_peer(const tr__member *member, tr__failure *failure, tr__wire theirs[TR__CHANNELS], manner how)
{
    static tr__tls_key *key;
    if (!key) FUZZ_CHECK(tr__tls_key_new("the job's token", &key) == TR_OK);
    tr__tcp *t;
    tr__endpoint_record record;
    FUZZ_CHECK(tr__tcp_new(member, failure, &record, &t) == TR_OK);
    for (int channel = 0; channel < TR__CHANNELS; channel++) {
        tr__wire wire;
        tr__network_connection *c = malloc(sizeof *c);
        connect_wires(&wire, &theirs[channel], how == ENCRYPTED ? key : NULL, how);
        FUZZ_CHECK(tr__network_adopt(t->network, 1, (tr__channel)channel, TR__FIRST_GROUP, &wire, c) == TR_OK);
        if (channel != TR__CONTROL_CHANNEL) tr__tcp_calls.connected(t, 1, (tr__channel)channel, c);
    }
    tr__tcp_know_members(t);
    FUZZ_CHECK(tr__network_monitor_start(t->network) == TR_OK);
    return t;
}

static void run(tr__tcp *t, tr__p2p *p2p, const tr_collective *c, float *received)
{
    tr_work *work = tr__object_new(&tr__work_type);
    work->collective = (tr_collective){.size = sizeof(tr_collective), .kind = TR_RECV, .out = received, .count = COUNT,
        .peer = 1, .timeout_ms = 5000, .file = "fuzz.c", .line = 9};
    tr__p2p_start(p2p, work, false);
    tr_status status = tr__tcp_run(t, c, 1);
    FUZZ_CHECK(status == TR_OK || status == TR_PEER || status == TR_MISMATCH || status == TR_FORMAT ||
               tr__failure_there(t->failure)); /* or what the peer says has failed */
    FUZZ_CHECK(status == TR_OK || tr_error_message()[0]);
    status = tr_wait(work);
    FUZZ_CHECK(status == TR_OK || tr_error_message()[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    TR_SCOPE;
    tr__wire theirs[TR__CHANNELS];
    float in[MANY * COUNT] = {0}, out[MANY * COUNT], received[COUNT];
    if (count < 1) return 0;
    tr__member member = {.group = "fuzz", .world_size = world_of(bytes[0]), .store = tr_store_memory(), .timeout_ms = 5000,
        .report_ms = 5000, .unexpected_bytes = 1 << 20};
    tr__failure *failure = tr__failure_new();
    FUZZ_CHECK(failure);
    tr__tcp *t = connect_peer(&member, failure, theirs, manner_of(bytes[0]));
    tr__p2p *p2p;
    FUZZ_CHECK(tr__p2p_new(&member, failure, NULL, t, &p2p) == TR_OK);
    say(theirs, bytes + 1, count - 1);
    for (int channel = TR__CHANNELS - 1; channel >= 0; channel--) shutdown(theirs[channel].socket, SHUT_WR);
    tr_collective c = collective(bytes[0]);
    c.in = in;
    c.out = out;
    run(t, p2p, &c, received);
    for (int channel = 0; channel < TR__CHANNELS; channel++) tr__wire_close(&theirs[channel]);
    tr__p2p_end(p2p);
    tr__tcp_close(t);
    tr__failure_free(failure);
    return 0;
}
