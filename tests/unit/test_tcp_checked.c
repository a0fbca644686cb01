/* Records with a checksum: whatever happens to the bytes on their way, what is given out is what was sent, up to the damage. */
#include "net/wire.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 700000, HEADER = sizeof(tr__checked_header) };

static uint64_t random_state;

static size_t draw(size_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(random_state >> 33) % below;
}

typedef struct stream {
    unsigned char *sent, *got, *wire; /* what is sent and given out, and the bytes between */
    size_t wire_bytes;
} stream;

static void make_sockets(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
}

/* Sends all of it in calls of random sizes and parts, and catches what goes out. */
static void catch_stream(stream *s)
{
    int ends[2];
    make_sockets(ends);
    tr__checked_sender sender = {0};
    s->wire_bytes = 0;
    for (size_t at = 0, offered = 0; at < BYTES;) {
        if (offered <= at) offered = at + 1 + draw(draw(2) ? 300 : 300000);
        if (offered > BYTES) offered = BYTES;
        size_t first = draw(offered - at + 1);
        struct iovec parts[3] = {{s->sent + at, first}, {NULL, 0}, {s->sent + at + first, offered - at - first}};
        ssize_t taken = tr__checked_send(&sender, ends[0], parts, 3);
        if (taken > 0) at += (size_t)taken;
        if (taken < 0) assert_int_equal(errno, EAGAIN);
        for (ssize_t came; (came = recv(ends[1], s->wire + s->wire_bytes, 1 + draw(100000), 0)) > 0;)
            s->wire_bytes += (size_t)came;
    }
    close(ends[0]);
    close(ends[1]);
}

/* Feeds bytes of the wire, and receives until the end or a failure. Returns how much was given out; *error as errno, 0: the end. */
static size_t receive_stream(stream *s, const unsigned char *wire, size_t bytes, int *error)
{
    int ends[2];
    make_sockets(ends);
    tr__wire receiver = {.socket = ends[1], .checked = true};
    size_t fed = 0, at = 0;
    ssize_t got = -1;
    *error = EAGAIN;
    memset(s->got, 0, BYTES);
    while (*error == EAGAIN) {
        size_t piece = 1 + draw(draw(2) ? 200 : 200000);
        if (piece > bytes - fed) piece = bytes - fed;
        ssize_t put = piece ? send(ends[0], wire + fed, piece, MSG_NOSIGNAL) : 0;
        if (put > 0) fed += (size_t)put;
        if (fed == bytes) shutdown(ends[0], SHUT_WR);
        for (;;) {
            size_t room = BYTES - at, part = room ? 1 + draw(room) : 0;
            if (at == BYTES) part = 0;
            const char *there;
            size_t most;
            char beyond;
            if (part && !receiver.in.placed && draw(3) == 0) {
                got = tr__checked_peek(&receiver.in, ends[1], &there, &most);
                if (got > 0) {
                    got = (ssize_t)(most < part ? most : part);
                    memcpy(s->got + at, there, (size_t)got);
                    tr__checked_skip(&receiver.in, (size_t)got);
                }
            } else if (part && draw(2) && !receiver.in.placed) {
                struct iovec two[2] = {{s->got + at, part / 2}, {s->got + at + part / 2, part - part / 2}};
                got = tr__wire_receive(&receiver, two, 2, false);
            } else {
                struct iovec rest = {part ? (char *)s->got + at : &beyond, part ? room : 1};
                got = tr__wire_receive(&receiver, &rest, 1, part > 0);
            }
            if (got <= 0) break;
            assert_true(at + (size_t)got <= BYTES);
            at += (size_t)got;
        }
        *error = got < 0 ? errno : 0;
    }
    tr__wire_close(&receiver);
    close(ends[0]);
    return at;
}

static int make_stream(void **state)
{
    stream *s = calloc(1, sizeof *s);
    s->sent = malloc(BYTES);
    s->got = malloc(BYTES);
    s->wire = malloc(8 * BYTES);
    random_state = 20;
    for (size_t i = 0; i < BYTES; i++) s->sent[i] = (unsigned char)draw(256);
    *state = s;
    return 0;
}

static int free_stream(void **state)
{
    stream *s = *state;
    free(s->sent);
    free(s->got);
    free(s->wire);
    free(s);
    return 0;
}

static void what_is_sent_arrives(void **state)
{
    stream *s = *state;
    for (int round = 0; round < 20; round++) {
        int error;
        catch_stream(s);
        assert_int_equal(receive_stream(s, s->wire, s->wire_bytes, &error), BYTES);
        assert_int_equal(error, 0);
        assert_memory_equal(s->got, s->sent, BYTES);
    }
}

/* Every flip is found, nothing behind the record before it is given out, and what is given out is right. */
static void a_flipped_bit_is_found(void **state)
{
    stream *s = *state;
    catch_stream(s);
    for (int round = 0; round < 1000; round++) {
        int error;
        size_t bit = draw(8 * s->wire_bytes);
        s->wire[bit / 8] ^= (unsigned char)(1u << bit % 8);
        size_t at = receive_stream(s, s->wire, s->wire_bytes, &error);
        s->wire[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(error, EBADMSG);
        assert_true(at <= bit / 8);
        assert_memory_equal(s->got, s->sent, at);
    }
}

/* The records' beginnings on the wire; returns how many there are. */
static int find_records(const stream *s, size_t *begins, int most)
{
    int count = 0;
    for (size_t at = 0; at < s->wire_bytes && count < most; count++) {
        tr__checked_header header;
        memcpy(&header, s->wire + at, HEADER);
        begins[count] = at;
        at += HEADER + header.bytes;
    }
    return count;
}

/* A record that is lost, comes twice, or changes places with the next, has a right sum and a wrong number. */
static void a_record_out_of_turn_is_found(void **state)
{
    stream *s = *state;
    size_t begins[200];
    catch_stream(s);
    int count = find_records(s, begins, 200);
    assert_true(count > 3);
    unsigned char *other = malloc(3 * BYTES);
    for (int round = 0; round < 60; round++) {
        int error, i = (int)draw((size_t)count - 2);
        size_t before = begins[i], first = begins[i + 1] - before, second = begins[i + 2] - begins[i + 1], bytes = before;
        size_t rest = s->wire_bytes - begins[i + 2];
        bool twice = round % 3 == 1, swapped = round % 3 == 2;
        memcpy(other, s->wire, before);
        if (swapped || twice) memcpy(other + bytes, s->wire + (swapped ? begins[i + 1] : before), swapped ? second : first);
        if (swapped || twice) bytes += swapped ? second : first;
        if (swapped || twice) memcpy(other + bytes, s->wire + before, first);
        if (swapped || twice) bytes += first;
        if (!swapped) memcpy(other + bytes, s->wire + begins[i + 1], second);
        if (!swapped) bytes += second;
        memcpy(other + bytes, s->wire + begins[i + 2], rest);
        size_t at = receive_stream(s, other, bytes + rest, &error);
        assert_int_equal(error, EBADMSG);
        assert_memory_equal(s->got, s->sent, at);
    }
    free(other);
}

/* The stream's end within a record is an end, and the record is not given out. */
static void a_cut_is_an_end(void **state)
{
    stream *s = *state;
    catch_stream(s);
    for (int round = 0; round < 100; round++) {
        int error;
        size_t at = receive_stream(s, s->wire, draw(s->wire_bytes), &error);
        assert_int_equal(error, 0);
        assert_memory_equal(s->got, s->sent, at);
    }
}

/* Whoever goes on without records, as remote procedure calls do, gets what was read ahead of them, and the rest from the socket. */
static void bytes_behind_records_are_not_lost(void **state)
{
    stream *s = *state;
    const size_t sizes[] = {1, 100, TR__CHECKED_AHEAD - HEADER, TR__CHECKED_AHEAD, 20000, TR__CHECKED_MAX};
    for (size_t i = 0; i < 6; i++) {
        int ends[2];
        enum { BEHIND = 6000 };
        char rest[TR__CHECKED_AHEAD], behind[BEHIND];
        make_sockets(ends);
        tr__checked_sender sender = {0};
        tr__checked_receiver receiver = {0};
        struct iovec part = {s->sent, sizes[i]};
        assert_int_equal(tr__checked_send(&sender, ends[0], &part, 1), sizes[i]);
        assert_int_equal(send(ends[0], s->sent + 7, BEHIND, 0), BEHIND);
        assert_int_equal(tr__checked_receive(&receiver, ends[1], (char *)s->got, sizes[i], i % 2), sizes[i]);
        assert_memory_equal(s->got, s->sent, sizes[i]);
        size_t count = tr__checked_take_rest(&receiver, rest);
        memcpy(behind, rest, count);
        assert_int_equal(recv(ends[1], behind + count, BEHIND - count, 0), BEHIND - count);
        assert_memory_equal(behind, s->sent + 7, BEHIND);
        assert_int_equal(tr__checked_take_rest(&receiver, rest), 0);
        tr__checked_free(&receiver);
        close(ends[0]);
        close(ends[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_sent_arrives),
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(a_record_out_of_turn_is_found),
        cmocka_unit_test(a_cut_is_an_end),
        cmocka_unit_test(bytes_behind_records_are_not_lost),
    };
    return cmocka_run_group_tests(tests, make_stream, free_stream);
}
