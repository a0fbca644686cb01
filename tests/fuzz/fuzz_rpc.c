/*
 * Messages between workers. The first byte says how they come: even: one body of values, with pieces of 3,000 bytes beside;
 * odd: as a stream from another host, which may hold any number of frames. What reads as a value must be writable again, and
 * read the same.
 */
#include "fuzz.h"

#include "rpc/agent.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 3000, PIECES = 3 };

static tr_rref *no_reference(void *user, const unsigned char token[40])
{
    (void)user;
    return tr__object_fail(&tr__rref_type, TR_NOT_FOUND, "a reference of maker %d", token[8]);
}

static void release(void *memory, void *unused)
{
    (void)unused;
    free(memory);
}

/* ---- Inputs to begin with ----------------------------------------------------------------------------------------- */

static void write_values(tr__rpc_writer *w, uint32_t number)
{
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    tr_status status = tr_list_add(list, "weight", tr_ones(TR_SHAPE(2, 3)));
    if (status == TR_OK) status = tr_list_set_metadata(list, "key", "value");
    FUZZ_CHECK(status == TR_OK);
    const tr_value values[] = {tr_value_i64(number), tr_value_f64(0.5), tr_value_string("sail"),
        tr_value_tensor(tr_arange(number % 50, TR_I32, tr_cpu(0))), tr_value_tensors(list), tr_value_none(),
        tr_value_bytes((tr_bytes){"rope", 4}), tr_value_tensor(NULL),
        tr_value_tensor(tr_zeros(TR_SHAPE(PIECE), .dtype = TR_U8))};
    for (uint32_t i = 0; i < 1 + number / 9 % 4; i++) tr__rpc_write_value(w, &values[(number + 2 * i) % 9]);
}

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    write_values(&w, number / 2);
    tr__rpc_frame frame = {.magic = TR__RPC_MAGIC, .version = TR__RPC_VERSION, .type = (uint8_t)(1 + number / 2 % 7),
        .id = number, .body = (uint32_t)w.used};
    size_t used = 1;
    bytes[0] = (uint8_t)(number & 1);
    if (number & 1) {
        memcpy(bytes + used, &frame, sizeof frame);
        used += sizeof frame;
    }
    size_t body = w.used < FUZZ_SEED - used ? w.used : FUZZ_SEED - used;
    memcpy(bytes + used, w.at, body);
    tr__rpc_writer_end(&w);
    return used + body;
}

/* ---- Values ------------------------------------------------------------------------------------------------------- */

static void check_again(const tr_value *v)
{
    tr__rpc_writer w;
    tr__rpc_writer_begin(&w);
    tr__rpc_write_value(&w, v);
    FUZZ_CHECK(w.status == TR_OK);
    if (w.piece_count == 0) {
        tr__rpc_reader r = {.at = w.at, .end = w.at + w.used, .take_in = no_reference};
        tr_value again;
        FUZZ_CHECK(tr__rpc_read_value(&r, &again) == TR_OK && again.kind == v->kind && r.at == r.end);
    }
    tr__rpc_writer_end(&w);
}

static void read_values(const uint8_t *bytes, size_t count)
{
    tr__rpc_arrived pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = (tr__rpc_arrived){.memory = calloc(1, PIECE), .bytes = PIECE, .release = release};
        FUZZ_CHECK(pieces[i].memory);
    }
    tr__rpc_reader r = {.at = bytes, .end = bytes + count, .pieces = pieces, .piece_count = PIECES,
        .take_in = no_reference};
    tr_scope_push();
    tr_value v;
    while (r.at < r.end && tr__rpc_read_value(&r, &v) == TR_OK) check_again(&v);
    tr_scope_pop();
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].memory) release(pieces[i].memory, NULL);
}

/* ---- A stream ----------------------------------------------------------------------------------------------------- */

static void read_stream(const uint8_t *bytes, size_t count)
{
    TR_SCOPE;
    int ends[2];
    static struct tr_rpc rpc; /* as much of an agent as reading needs */
    static tr__rpc_link links[2];
    memset(links, 0, sizeof links);
    memset(&rpc, 0, sizeof rpc);
    rpc.links = links;
    rpc.world = 2;
    rpc.found_last = &rpc.found;
    rpc.group = tr_join(.init = "tcp://127.0.0.1:1", .world_size = 1);
    rpc.watch = epoll_create1(EPOLL_CLOEXEC);
    links[1].worker = 1;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    tr__wire wire = {.socket = ends[0]};
    FUZZ_CHECK(tr__link_connect(&rpc, &links[1], &wire) == TR_OK);
    FUZZ_CHECK(send(ends[1], bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
    tr__link_ready(&links[1], EPOLLIN);
    tr__link_read(&rpc, &links[1]);
    for (tr__rpc_inbound *m = rpc.found, *next; m; m = next) {
        next = m->next;
        read_values(m->body, m->frame.body);
        tr__inbound_free(m);
    }
    close(ends[1]);
    tr__link_free(&links[1]);
    close(ends[0]);
    close(rpc.watch);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2) return 0;
    uint8_t *copy = fuzz_copy(bytes + 1, count - 1);
    if (bytes[0] & 1)
        read_stream(copy, count - 1);
    else
        read_values(copy, count - 1);
    free(copy);
    return 0;
}
