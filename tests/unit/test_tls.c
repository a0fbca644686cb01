/* TLS sessions without sockets: two ends that pass bytes to each other, well, cut, changed, and with impostors. */
#include "base/object.h"
#include "net/tls.h"

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct pair {
    tr__tls_key *client_key, *server_key;
    tr__tls *client, *server;
} pair;

static tr__tls_key *key_of(const char *token)
{
    tr__tls_key *key = NULL;
    assert_int_equal(tr__tls_key_new(token, &key), TR_OK);
    return key;
}

static pair open_pair(const char *client_token, const char *server_token)
{
    pair p = {.client_key = key_of(client_token), .server_key = key_of(server_token)};
    p.client = tr__tls_new(p.client_key, TR__TLS_CLIENT);
    p.server = tr__tls_new(p.server_key, TR__TLS_SERVER);
    assert_true(p.client && p.server);
    return p;
}

static void close_pair(pair *p)
{
    tr__tls_free(p->client);
    tr__tls_free(p->server);
    tr__tls_key_unref(p->client_key);
    tr__tls_key_unref(p->server_key);
}

/* Carries what one end has to say to the other; returns its bytes. */
static size_t carry(tr__tls *from, tr__tls *to)
{
    char *bytes;
    size_t count = tr__tls_outgoing(from, &bytes);
    assert_true(count <= TR__TLS_HANDSHAKE_MAX);
    assert_true(tr__tls_feed(to, bytes, count));
    tr__tls_sent(from);
    return count;
}

/* Until both are done, or one fails; whether it went well. */
static bool shake_hands(pair *p)
{
    for (int turn = 0; turn < 8; turn++) {
        int client = tr__tls_handshake(p->client);
        carry(p->client, p->server);
        int server = client < 0 ? -1 : tr__tls_handshake(p->server);
        carry(p->server, p->client);
        if (client < 0 || server < 0) {
            tr__tls_handshake(p->client); /* it reads the alert */
            return false;
        }
        if (client == 1 && server == 1) return true;
    }
    return false;
}

static void both_ends_prove_the_token(void **state)
{
    (void)state;
    pair p = open_pair("the token", "the token");
    assert_false(tr__tls_ready(p.client));
    assert_true(shake_hands(&p));
    assert_true(tr__tls_ready(p.client) && tr__tls_ready(p.server));

    const char words[] = "a secret that nobody may read";
    char got[64], *wire;
    assert_true(tr__tls_write(p.client, words, sizeof words));
    size_t count = tr__tls_outgoing(p.client, &wire);
    assert_true(count > sizeof words);
    assert_null(memmem(wire, count, words, 8));
    carry(p.client, p.server);
    assert_int_equal(tr__tls_read(p.server, got, sizeof got), sizeof words);
    assert_string_equal(got, words);
    assert_int_equal(tr__tls_read(p.server, got, sizeof got), 0);
    close_pair(&p);
}

/* Who has the token shows it in its first message, before anything has come back. */
static void the_first_message_tells(void **state)
{
    (void)state;
    static const char *const tokens[] = {"the token", "another token"};
    for (int i = 0; i < 2; i++) {
        pair p = open_pair(tokens[i], "the token");
        assert_int_equal(tr__tls_handshake(p.client), 0);
        assert_false(tr__tls_has_proof(p.server));
        carry(p.client, p.server);
        assert_int_equal(tr__tls_handshake(p.server), i == 0 ? 0 : -1);
        assert_int_equal(tr__tls_has_proof(p.server), i == 0);
        assert_false(tr__tls_ready(p.server));
        close_pair(&p);
    }
}

static void keys_are_renewed(void **state)
{
    (void)state;
    pair p = open_pair("the token", "the token");
    char got[64];
    assert_true(shake_hands(&p));
    for (int turn = 0; turn < 3; turn++) {
        assert_true(tr__tls_write(p.client, "before", 6) && tr__tls_renew(p.client) && tr__tls_write(p.client, "after", 5));
        carry(p.client, p.server);
        assert_true(tr__tls_holds(p.server));
        assert_int_equal(tr__tls_read(p.server, got, sizeof got), 6);
        assert_int_equal(tr__tls_read(p.server, got, sizeof got), 5);
        assert_memory_equal(got, "after", 5);
        assert_int_equal(tr__tls_read(p.server, got, sizeof got), 0);
        assert_false(tr__tls_holds(p.server));
        assert_true(tr__tls_write(p.server, "back", 4));
        carry(p.server, p.client);
        assert_int_equal(tr__tls_read(p.client, got, sizeof got), 4);
    }
    close_pair(&p);
}

static void another_token_is_told_apart(void **state)
{
    (void)state;
    pair p = open_pair("the token", "another token");
    assert_false(shake_hands(&p));
    assert_true(tr__tls_key_differs(p.client) && tr__tls_key_differs(p.server));
    assert_false(tr__tls_ready(p.client) || tr__tls_ready(p.server));
    close_pair(&p);
}

static void changed_bytes_end_the_session(void **state)
{
    (void)state;
    pair p = open_pair("t", "t");
    assert_true(shake_hands(&p));
    char *wire, got[64];
    assert_true(tr__tls_write(p.client, "1234567890", 10));
    size_t count = tr__tls_outgoing(p.client, &wire);
    wire[count - 3] ^= 1;
    carry(p.client, p.server);
    assert_int_equal(tr__tls_read(p.server, got, sizeof got), -1);
    close_pair(&p);
}

static void garbage_is_an_error(void **state)
{
    (void)state;
    pair p = open_pair("t", "t");
    const char words[] = "GET / HTTP/1.1\r\n\r\n";
    assert_true(tr__tls_feed(p.server, words, sizeof words));
    assert_int_equal(tr__tls_handshake(p.server), -1);
    assert_false(tr__tls_key_differs(p.server));
    assert_int_equal(tr__tls_handshake(p.client), 0);
    assert_true(tr__tls_feed(p.client, words, sizeof words));
    assert_int_equal(tr__tls_handshake(p.client), -1);
    assert_false(tr__tls_ready(p.client));
    close_pair(&p);
}

/* ---- A server that has a certificate instead of the key ---------------------------------------------------------- */

static void certify(SSL_CTX *context)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    assert_int_equal(SSL_CTX_use_certificate(context, certificate), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(context, key), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static void a_certificate_is_no_key(void **state)
{
    (void)state;
    tr__tls_key *key = key_of("t");
    tr__tls *client = tr__tls_new(key, TR__TLS_CLIENT);
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    certify(context);
    SSL *impostor = SSL_new(context);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    SSL_set_bio(impostor, in, out);
    SSL_set_accept_state(impostor);

    int done = 0;
    for (int turn = 0; turn < 8 && done == 0; turn++) {
        char *bytes;
        done = tr__tls_handshake(client);
        size_t count = tr__tls_outgoing(client, &bytes);
        BIO_write(in, bytes, (int)count);
        tr__tls_sent(client);
        SSL_do_handshake(impostor);
        long answer = BIO_get_mem_data(out, &bytes);
        assert_true(tr__tls_feed(client, bytes, (size_t)answer));
        (void)BIO_reset(out);
    }
    assert_int_equal(done, -1);
    assert_false(tr__tls_ready(client));
    assert_true(tr__tls_key_differs(client));
    SSL_free(impostor);
    SSL_CTX_free(context);
    tr__tls_free(client);
    tr__tls_key_unref(key);
}

static void tokens_have_limits(void **state)
{
    (void)state;
    tr__tls_key *key = NULL;
    char token[TR__TOKEN_MAX + 2];
    memset(token, 't', sizeof token);
    token[TR__TOKEN_MAX + 1] = 0;
    assert_int_equal(tr__tls_key_new(token, &key), TR_INVALID);
    assert_int_equal(tr__tls_key_new("", &key), TR_INVALID);
    assert_null(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_prove_the_token),   cmocka_unit_test(another_token_is_told_apart),
        cmocka_unit_test(changed_bytes_end_the_session), cmocka_unit_test(garbage_is_an_error),
        cmocka_unit_test(the_first_message_tells),     cmocka_unit_test(keys_are_renewed),
        cmocka_unit_test(a_certificate_is_no_key),     cmocka_unit_test(tokens_have_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
