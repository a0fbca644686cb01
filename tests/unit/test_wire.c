/* TLS handshakes over a socket: what follows a handshake at once, however much, does not count as part of it. */
#include "net/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

static void open_ends(tr__wire *client, tr__wire *server)
{
    int ends[2];
    tr__tls_key *key;
    assert_int_equal(tr__tls_key_new("the token", &key), TR_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    assert_true(tr__wire_open(client, ends[0], key, TR__TLS_CLIENT));
    assert_true(tr__wire_open(server, ends[1], key, TR__TLS_SERVER));
    tr__tls_key_unref(key);
}

/* The client is done first, and need not wait for the server. */
static void what_follows_the_handshake_at_once_arrives(void **state)
{
    (void)state;
    tr__wire client, server;
    static char sent[40000], got[sizeof sent];
    memset(sent, 7, sizeof sent);
    open_ends(&client, &server);
    assert_int_equal(tr__wire_shake_hands(&client), 0);
    assert_int_equal(tr__wire_shake_hands(&server), 0);
    assert_int_equal(tr__wire_shake_hands(&client), 1);
    assert_int_equal(tr__wire_send(&client, &(struct iovec){sent, sizeof sent}, 1), sizeof sent);
    assert_int_equal(tr__wire_shake_hands(&server), 1);
    size_t at = 0;
    while (at < sizeof got) {
        ssize_t some = tr__wire_receive(&server, &(struct iovec){got + at, sizeof got - at}, 1, false);
        assert_true(some > 0);
        at += (size_t)some;
    }
    assert_memory_equal(got, sent, sizeof sent);
    tr__wire_close(&client);
    tr__wire_close(&server);
}

/* A client whose handshake does not end is refused. */
static void a_handshake_has_an_end(void **state)
{
    (void)state;
    tr__wire client, server;
    open_ends(&client, &server);
    static const char record[5 + 16000] = {TR__TLS_RECORD, 3, 1, 16000 >> 8, (char)(16000 & 255), 1, 0, 0x7f, 0};
    int heard = 0;
    for (size_t at = 0; heard == 0 && at < sizeof record; at += 1000) {
        size_t some = sizeof record - at < 1000 ? sizeof record - at : 1000;
        assert_int_equal(send(client.socket, record + at, some, 0), some);
        heard = tr__wire_shake_hands(&server);
    }
    assert_int_equal(heard, -1);
    tr__wire_close(&client);
    tr__wire_close(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_follows_the_handshake_at_once_arrives),
        cmocka_unit_test(a_handshake_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
