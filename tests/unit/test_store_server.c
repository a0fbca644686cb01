/* The TCP store's frames, and its server under bad clients. */
#include "../store_frames.h"
#include "base/clock.h"
#include "net/store/client.h"
#include "net/store/connection.h"
#include "net/store/store.h"
#include "net/tls.h"
#include "sockets.h"
#include "store_checks.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

static const tr__frame frames[] = {
    {.type = TR__FRAME_HELLO},
    {.type = TR__FRAME_GET, .key = "k", .key_bytes = 1, .timeout_ms = 12345},
    {.type = TR__FRAME_WAIT, .key = "key", .key_bytes = 3},
    {.type = TR__FRAME_SET, .key = "key", .key_bytes = 3, .value = "value", .value_bytes = 5},
    {.type = TR__FRAME_SET, .key = "key", .key_bytes = 3},
    {.type = TR__FRAME_ADD, .key = "n", .key_bytes = 1, .amount = INT64_MIN},
    {.type = TR__FRAME_COMPARE_SET, .key = "c", .key_bytes = 1, .value = "new", .value_bytes = 3},
    {.type = TR__FRAME_COMPARE_SET, .key = "c", .key_bytes = 1, .expected = "old", .expected_bytes = 3, .value = "new",
        .value_bytes = 3},
    {.type = TR__FRAME_COMPARE_SET, .key = "c", .key_bytes = 1, .expected = "", .expected_bytes = 0},
    {.type = TR__FRAME_REPLY, .code = TR__REPLY_TIMEOUT},
    {.type = TR__FRAME_REPLY, .code = TR__REPLY_OK, .value = "v", .value_bytes = 1},
    {.type = TR__FRAME_DELETE, .key = "k", .key_bytes = 1},
    {.type = TR__FRAME_GATHER, .timeout_ms = 7, .value = "\1\0k\3\0key", .value_bytes = 8},
};
enum { FRAMES = sizeof frames / sizeof *frames };

static void frames_come_back_as_they_went(void **state)
{
    (void)state;
    for (int i = 0; i < FRAMES; i++) {
        const tr__frame *f = &frames[i];
        unsigned char bytes[128];
        size_t count = flatten(f, bytes);
        tr__frame g;
        for (size_t part = 0; part < count; part++) {
            unsigned char *copy = malloc(part + 1); /* so that a sanitizer sees a read beyond the end */
            memcpy(copy, bytes, part);
            assert_true(tr__frame_parse(copy, part, TR__FRAME_MAX, &g) == 0);
            free(copy);
        }
        assert_true(tr__frame_parse(bytes, count, TR__FRAME_MAX, &g) == (ssize_t)count);
        assert_true(tr__frame_parse(bytes, count, count - 1, &g) == -1);
        assert_true(g.type == f->type && g.code == f->code && g.amount == f->amount && g.timeout_ms == f->timeout_ms);
        assert_true(g.key_bytes == f->key_bytes && g.value_bytes == f->value_bytes);
        assert_true(g.expected_bytes == f->expected_bytes && (g.expected != NULL) == (f->expected != NULL));
        assert_memory_equal(g.key, f->key ? f->key : "", g.key_bytes);
        assert_memory_equal(g.value, f->value ? f->value : "", g.value_bytes);
        if (f->expected) assert_memory_equal(g.expected, f->expected, g.expected_bytes);
    }
}

static void only_sound_lists_are_gathered(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        size_t bytes;
    } bad[] = {{"", 0}, {"\1", 1}, {"\0\0", 2}, {"\2\0k", 3}, {"\1\0kk", 4}, {"\1\0k\1\0", 5}, {"\2\0k\0", 4}, {"\1\4k", 3}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        unsigned char bytes[64];
        tr__frame f = {.type = TR__FRAME_GATHER, .value = bad[i].list, .value_bytes = bad[i].bytes};
        size_t count = flatten(&f, bytes);
        assert_true(tr__frame_parse(bytes, count, TR__FRAME_MAX, &f) == -1);
    }
    unsigned char items[16], *end = tr__list_put_value(tr__list_put_value(items, NULL, 0), "v", 1);
    tr__list list = {items, (size_t)(end - items)}, cut = {items, list.bytes - 1};
    const void *value;
    size_t bytes;
    assert_true(tr__list_take_value(&list, &value, &bytes) && !value && bytes == 0);
    assert_true(tr__list_take_value(&list, &value, &bytes) && bytes == 1 && *(const char *)value == 'v');
    assert_false(tr__list_take_value(&list, &value, &bytes));
    assert_true(tr__list_take_value(&cut, &value, &bytes) && !tr__list_take_value(&cut, &value, &bytes));
}

/* xorshift: the same bytes in every run. */
static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* What the parser accepts must lie within the bytes and the limits. */
static void check_parse(const unsigned char *bytes, size_t count)
{
    unsigned char *copy = malloc(count + 1);
    memcpy(copy, bytes, count);
    tr__frame f;
    ssize_t used = tr__frame_parse(copy, count, TR__FRAME_MAX, &f);
    assert_true(used >= -1 && used <= (ssize_t)count);
    if (used > 0) {
        assert_true(f.key_bytes <= TR__KEY_MAX && f.value_bytes <= TR__VALUE_MAX && f.expected_bytes <= TR__VALUE_MAX);
        assert_true(f.key_bytes + f.value_bytes + f.expected_bytes <= (size_t)used);
        unsigned sum = 0;
        for (size_t i = 0; i < f.key_bytes; i++) sum += (unsigned char)f.key[i];
        for (size_t i = 0; i < f.value_bytes; i++) sum += ((const unsigned char *)f.value)[i];
        for (size_t i = 0; f.expected && i < f.expected_bytes; i++) sum += ((const unsigned char *)f.expected)[i];
        volatile unsigned read_all = sum;
        (void)read_all;
    }
    free(copy);
}

static void random_bytes_are_no_danger(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int trial = 0; trial < 100000; trial++) {
        unsigned char bytes[128];
        size_t count = next_random(&seed) % sizeof bytes;
        for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)next_random(&seed);
        if (trial % 4) { /* a true frame with a few bytes changed, and perhaps cut */
            count = flatten(&frames[next_random(&seed) % FRAMES], bytes);
            for (uint32_t n = next_random(&seed) % 4; n > 0; n--)
                bytes[next_random(&seed) % count] =
                    (unsigned char)(next_random(&seed) % 5 ? next_random(&seed) % 8 : 255);
            if (next_random(&seed) % 4 == 0) count = next_random(&seed) % (count + 1);
        }
        check_parse(bytes, count);
    }
}

/* ---- The server under bad clients -------------------------------------------------------------------------------- */

static void send_raw(int fd, const tr__frame *frame)
{
    unsigned char bytes[128];
    size_t count = flatten(frame, bytes);
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
}

/* A reply's code; -1: the server hung up. */
static int read_code(int fd)
{
    unsigned char bytes[64];
    size_t used = 0;
    tr__frame frame;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        ssize_t got = recv(fd, bytes + used, sizeof bytes - used, 0);
        if (got <= 0) return -1;
        used += (size_t)got;
        if (tr__frame_parse(bytes, used, TR__FRAME_MAX, &frame) > 0) return (int)frame.code;
    }
}

static int raw_guest(int port)
{
    int fd = call_loopback(port);
    send_raw(fd, &frames[0]);
    assert_int_equal(read_code(fd), TR__REPLY_OK);
    return fd;
}

static void bad_clients_are_hung_up_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    int port = tr_store_port(store);

    int fd = call_loopback(port); /* asks before it has said hello */
    send_raw(fd, &frames[3]);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = call_loopback(port); /* promises a frame that is larger than a hello may be */
    unsigned char header[TR__FRAME_HEADER] = {0xff, 0xff, 0, 0, TR__FRAME_VERSION, TR__FRAME_HELLO, 0, 0};
    assert_int_equal(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_guest(port); /* another version */
    header[4] = TR__FRAME_VERSION + 1;
    header[5] = TR__FRAME_GET;
    assert_int_equal(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_guest(port); /* replies where it should ask */
    send_raw(fd, &frames[9]);
    assert_int_equal(read_code(fd), -1);
    close(fd);

    fd = raw_guest(port); /* says hello twice */
    send_raw(fd, &frames[0]);
    assert_int_equal(read_code(fd), -1);
    close(fd);
    check_basics(store);
}

static void garbage_and_cut_frames_do_no_harm(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    int port = tr_store_port(store), silent = call_loopback(port); /* stands there for the whole test */
    uint32_t seed = 7;
    for (int trial = 0; trial < 200; trial++) {
        int fd = trial % 2 ? call_loopback(port) : raw_guest(port);
        unsigned char bytes[512];
        size_t count = flatten(&frames[next_random(&seed) % FRAMES], bytes);
        if (trial % 3 == 0) {
            count = next_random(&seed) % sizeof bytes;
            for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)next_random(&seed);
        } else {
            count = next_random(&seed) % count;
        }
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        (void)sent;
        close(fd);
    }
    check_basics(store);
    check_waits(store);
    close(silent);
}

/* Handshakes that stop, break off or never were one; the server serves on meanwhile. */
static void broken_handshakes_do_no_harm(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { SILENT = 50 };
    tr_store *store = serve("secret");
    int port = tr_store_port(store), silent[SILENT];
    unsigned char record[] = {TR__TLS_RECORD, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3};
    for (int i = 0; i < SILENT; i++) {
        silent[i] = call_loopback(port);
        if (i % 2) assert_int_equal(send(silent[i], record, sizeof record, MSG_NOSIGNAL), sizeof record);
    }
    uint32_t seed = 11;
    for (int trial = 0; trial < 100; trial++) {
        int fd = call_loopback(port);
        unsigned char bytes[512];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)next_random(&seed);
        if (trial % 3) memcpy(bytes, record, sizeof record);
        ssize_t sent = send(fd, bytes, 1 + next_random(&seed) % sizeof bytes, MSG_NOSIGNAL);
        (void)sent;
        close(fd);
    }
    int fd = call_loopback(port); /* a handshake that never ends */
    char much[TR__TLS_HANDSHAKE_MAX + 1] = {TR__TLS_RECORD};
    assert_int_equal(send(fd, much, sizeof much, MSG_NOSIGNAL), sizeof much);
    assert_int_equal(read_code(fd), -1);
    close(fd);
    check_basics(store);
    check_waits(store);
    for (int i = 0; i < SILENT; i++) close(silent[i]);
}

/* What the server logs, from its thread. */
typedef struct heard {
    pthread_mutex_t lock;
    char text[8192];
    int lines;
} heard;

static void hear(tr_log_level level, const char *message, void *user)
{
    (void)level;
    heard *h = user;
    pthread_mutex_lock(&h->lock);
    size_t used = strlen(h->text);
    snprintf(h->text + used, sizeof h->text - used, "%s\n", message);
    h->lines++;
    pthread_mutex_unlock(&h->lock);
}

static void await_line(heard *h, const char *words)
{
    bool found = false;
    for (int i = 0; i < 20000 && !found; i++) {
        pthread_mutex_lock(&h->lock);
        found = strstr(h->text, words);
        pthread_mutex_unlock(&h->lock);
        if (!found) usleep(1000);
    }
    if (!found) fail_msg("no '%s' in the log:\n%s", words, h->text);
}

static void who_is_turned_away_is_logged(void **state)
{
    (void)state;
    TR_SCOPE;
    heard h = {.lock = PTHREAD_MUTEX_INITIALIZER};
    tr_store *store = serve("secret"), *open = serve(NULL);
    tr_set_log(hear, &h, TR_LOG_WARN);
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(store), .token = "other", .timeout_ms = 20000)),
        "refused this job's token");
    await_line(&h, "away: its token is not this job's");
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(store), .timeout_ms = 20000)), "wants a token");
    await_line(&h, "away: it has no token");
    FAILS(TR_FORMAT, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(open), .token = "other", .timeout_ms = 20000)),
        "no Trireme store, or one without a token");
    await_line(&h, "away: it has a token, and this store has none");
    static const unsigned char broken[] = {TR__TLS_RECORD, 3, 1, 0, 5, 1, 0, 0, 1, 0};
    for (int i = 2; i < 12; i++) { /* after the two of above */
        int fd = call_loopback(tr_store_port(store));
        assert_int_equal(send(fd, broken, sizeof broken, MSG_NOSIGNAL), sizeof broken);
        while (read_code(fd) != -1) continue;
        close(fd);
    }
    await_line(&h, "away: a broken handshake");
    await_line(&h, "more of these will not be reported");
    check_basics(store); /* the server has heard the rest as well */
    tr_set_log(NULL, NULL, TR_LOG_OFF);
    assert_int_equal(h.lines, 10 + 1);
}

/* A frame that comes byte by byte, while others are served. */
static void slow_senders_hold_nobody_up(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    int fd = raw_guest(tr_store_port(store));
    unsigned char bytes[64];
    size_t count = flatten(&frames[3], bytes);
    for (size_t i = 0; i < count; i++) {
        FAILS(TR_TIMEOUT, tr__store_get(store, "key", 0, NULL, NULL), "key");
        assert_int_equal(send(fd, bytes + i, 1, MSG_NOSIGNAL), 1);
    }
    assert_int_equal(read_code(fd), TR__REPLY_OK);
    check_value(store, "key", "value", 5);
    close(fd);
}

/* As slow_clients_hold_nobody_up, through TLS: the reply is encrypted part by part as it is read. */
static void slow_readers_of_tls_hold_nobody_up(void **state)
{
    (void)state;
    TR_SCOPE;
    char *big = calloc(1, TR__VALUE_MAX), *records;
    tr_store *store = serve("secret");
    OK(tr_store_set(store, "big", big, TR__VALUE_MAX));
    tr__tls_key *key;
    tr__connection c;
    OK(tr__tls_key_new("secret", &key));
    tr__destination to = {.name = "store", .host = "127.0.0.1", .port = tr_store_port(store), .key = key};
    OK(tr__connection_open(&to, tr__now_ns() + INT64_C(20000000000), &c));
    unsigned char bytes[64];
    size_t count = flatten(&(tr__frame){.type = TR__FRAME_GET, .key = "big", .key_bytes = 3}, bytes);
    assert_true(tr__tls_write(c.wire.tls, bytes, count));
    count = tr__tls_outgoing(c.wire.tls, &records);
    assert_int_equal(send(c.wire.socket, records, count, MSG_NOSIGNAL), count);
    check_basics(store);
    check_value(store, "big", big, TR__VALUE_MAX);
    tr__wire_close(&c.wire);
    check_basics(tr_store_prefix(store, "after"));
    tr__tls_key_unref(key);
    free(big);
}

static void the_longest_message_comes_through_tls(void **state)
{
    (void)state;
    TR_SCOPE;
    char key[TR__KEY_MAX + 1] = {0}, *big = calloc(1, TR__VALUE_MAX);
    tr_store *store = serve("secret");
    void *found;
    size_t bytes;
    memset(key, 'k', TR__KEY_MAX);
    OK(tr_store_set(store, key, big, TR__VALUE_MAX));
    OK(tr_store_compare_set(store, key, big, TR__VALUE_MAX, big, TR__VALUE_MAX, &found, &bytes));
    assert_int_equal(bytes, TR__VALUE_MAX);
    free(found);
    free(big);
}

/* Many clients wait for one key; some die meanwhile; the rest hear of it. */
static void many_clients_wait(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { CLIENTS = 300 };
    int fds[CLIENTS];
    tr_store *store = serve(NULL);
    tr__frame wait = {.type = TR__FRAME_WAIT, .key = "go", .key_bytes = 2, .timeout_ms = 60000};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = raw_guest(tr_store_port(store));
        send_raw(fds[i], &wait);
    }
    for (int i = 0; i < CLIENTS; i += 3) close(fds[i]);
    OK(tr_store_set(store, "go", "now", 3));
    for (int i = 0; i < CLIENTS; i++) {
        if (i % 3 == 0) continue;
        assert_int_equal(read_code(fds[i]), TR__REPLY_OK);
        close(fds[i]);
    }
}

/* The value of the second of two replies, which is a number. */
static long read_second_number(int fd)
{
    unsigned char bytes[4096] = {0};
    size_t used = 0;
    tr__frame frame;
    for (;;) {
        ssize_t got = recv(fd, bytes + used, sizeof bytes - 1 - used, 0);
        assert_true(got > 0);
        used += (size_t)got;
        ssize_t first = tr__frame_parse(bytes, used, TR__FRAME_MAX, &frame);
        if (first > 0 && tr__frame_parse(bytes + first, used - (size_t)first, TR__FRAME_MAX, &frame) > 0)
            return strtol(frame.value, NULL, 10); /* a byte that is no digit stands behind it */
    }
}

/* Two clients have sent many requests behind a wait: they take turns, whoever was woken first. */
static void who_asks_a_lot_at_once_holds_nobody_up(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { ADDS = 500 };
    tr_store *store = serve(NULL);
    int fds[2];
    unsigned char bytes[ADDS * 64];
    size_t count = flatten(&(tr__frame){.type = TR__FRAME_WAIT, .key = "go", .key_bytes = 2, .timeout_ms = 60000}, bytes);
    for (int k = 0; k < ADDS; k++)
        count += flatten(&(tr__frame){.type = TR__FRAME_ADD, .key = "n", .key_bytes = 1, .amount = 1}, bytes + count);
    for (int i = 0; i < 2; i++) {
        fds[i] = raw_guest(tr_store_port(store));
        assert_int_equal(send(fds[i], bytes, count, MSG_NOSIGNAL), count);
    }
    check_basics(store); /* the server has heard them */
    OK(tr_store_set(store, "go", "now", 3));
    for (int i = 0; i < 2; i++) {
        assert_true(read_second_number(fds[i]) < ADDS / 2);
        close(fds[i]);
    }
}

/* Clients gather the same keys while others set them one by one; some die meanwhile; the rest get all. */
static void many_clients_gather(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { CLIENTS = 60 };
    int fds[CLIENTS];
    tr_store *store = serve(NULL);
    tr__frame gather = {.type = TR__FRAME_GATHER, .value = "\1\0a\1\0b\1\0c", .value_bytes = 9, .timeout_ms = 60000};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = raw_guest(tr_store_port(store));
        send_raw(fds[i], &gather);
    }
    OK(tr_store_set(store, "b", "2", 1));
    for (int i = 0; i < CLIENTS; i += 3) close(fds[i]);
    OK(tr_store_set(store, "a", "1", 1));
    OK(tr_store_set(store, "c", "3", 1));
    for (int i = 0; i < CLIENTS; i++) {
        if (i % 3 == 0) continue;
        assert_int_equal(read_code(fds[i]), TR__REPLY_OK);
        close(fds[i]);
    }
    check_waits(store);
}

/* A key that goes while a client gathers is waited for again. */
static void a_gather_waits_for_a_key_that_was_deleted(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    tr__frame gather = {.type = TR__FRAME_GATHER, .value = "\1\0a\1\0b", .value_bytes = 6, .timeout_ms = 60000};
    OK(tr_store_set(store, "a", "1", 1));
    int fd = raw_guest(tr_store_port(store));
    send_raw(fd, &gather);
    OK(tr_store_set(store, "other", "1", 1)); /* answered after the gather has been read, or before: both are right */
    OK(tr_store_delete(store, "a", NULL));
    OK(tr_store_set(store, "b", "2", 1));
    OK(tr_store_set(store, "a", "3", 1));
    assert_int_equal(read_code(fd), TR__REPLY_OK);
    close(fd);
    check_waits(store);
}

static void a_gather_has_its_bounds(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    char *big = calloc(1, TR__VALUE_MAX);
    OK(tr_store_set(store, "big", big, TR__VALUE_MAX / 2));
    static const char *const keys[] = {"big", "big"};
    tr__store_value values[2];
    OK(tr__store_gather(store, keys, 1, 0, values));
    assert_int_equal(values[0].bytes, TR__VALUE_MAX / 2);
    tr__store_values_free(values, 1);
    FAILS(TR_UNSUPPORTED, tr__store_gather(store, keys, 2, 0, values), "'big' and others");
    assert_null(values[0].data);
    check_basics(store);
    free(big);
}

/* What is replaced counts no more, what is there stays, and keys count beside small values. */
static void a_store_has_its_bounds(void **state)
{
    (void)state;
    TR_SCOPE;
    char half[600] = "", key[32];
    int64_t sum;
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .max_bytes = 1000);
    OK(tr_store_set(store, "a", half, sizeof half));
    FAILS(TR_UNSUPPORTED, tr_store_set(store, "b", half, sizeof half), "no room for 600 bytes of key 'b'");
    OK(tr_store_set(store, "a", half, 0));
    OK(tr_store_set(store, "b", half, sizeof half));
    FAILS(TR_UNSUPPORTED, tr_store_set(store, "a", half, sizeof half), "of key 'a'");
    OK(tr_store_set(store, "b", half, 0));
    int set = 0;
    tr_status status = TR_OK;
    for (; status == TR_OK && set < 1000; set++) {
        snprintf(key, sizeof key, "key%d", set);
        status = tr_store_add(store, key, 1, &sum);
    }
    assert_int_equal(status, TR_UNSUPPORTED);
    assert_in_range(set, 2, 20);
    OK(tr_store_add(store, "key0", 1, &sum));
    assert_int_equal(sum, 2);
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", 0, .serve = true, .max_bytes = -1)), "1 and more, not -1");
}

/* A client that asks for much and reads nothing holds nobody up. */
static void slow_clients_hold_nobody_up(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { CLIENTS = 4 };
    int fds[CLIENTS];
    char *big = calloc(1, TR__VALUE_MAX);
    tr_store *store = serve(NULL);
    OK(tr_store_set(store, "big", big, TR__VALUE_MAX));
    tr__frame get = {.type = TR__FRAME_GET, .key = "big", .key_bytes = 3, .timeout_ms = 1000};
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = raw_guest(tr_store_port(store));
        send_raw(fds[i], &get);
    }
    check_basics(store);
    check_value(store, "big", big, TR__VALUE_MAX);
    for (int i = 0; i < CLIENTS; i++) close(fds[i]);
    free(big);
}

/* There is no memory for so many clients. */
static atomic_int refused;
void *__real_calloc(size_t count, size_t bytes), *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes)
{
    if (count != 1 || bytes != sizeof(tr__client) || atomic_load(&refused) == 0) return __real_calloc(count, bytes);
    atomic_fetch_sub(&refused, 1);
    return NULL;
}

static void a_client_that_there_was_no_memory_for_is_let_in_later(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve(NULL);
    atomic_store(&refused, 2);
    close(raw_guest(tr_store_port(store)));
    assert_int_equal(atomic_load(&refused), 0);
    close(raw_guest(tr_store_port(store)));
    check_basics(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_back_as_they_went),
        cmocka_unit_test(only_sound_lists_are_gathered),
        cmocka_unit_test(random_bytes_are_no_danger),
        cmocka_unit_test(bad_clients_are_hung_up_on),
        cmocka_unit_test(garbage_and_cut_frames_do_no_harm),
        cmocka_unit_test(broken_handshakes_do_no_harm),
        cmocka_unit_test(who_is_turned_away_is_logged),
        cmocka_unit_test(slow_senders_hold_nobody_up),
        cmocka_unit_test(slow_readers_of_tls_hold_nobody_up),
        cmocka_unit_test(the_longest_message_comes_through_tls),
        cmocka_unit_test(many_clients_wait),
        cmocka_unit_test(who_asks_a_lot_at_once_holds_nobody_up),
        cmocka_unit_test(many_clients_gather),
        cmocka_unit_test(a_gather_waits_for_a_key_that_was_deleted),
        cmocka_unit_test(a_gather_has_its_bounds),
        cmocka_unit_test(a_store_has_its_bounds),
        cmocka_unit_test(slow_clients_hold_nobody_up),
        cmocka_unit_test(a_client_that_there_was_no_memory_for_is_let_in_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
