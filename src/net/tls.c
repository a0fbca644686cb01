#include "net/tls.h"

#include "base/object.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_BYTES = 32,
    RECORD_BYTES = 16 << 10,
    RECORDS_MOST = 1 << 22, /* under one key; RFC 8446 (5.5) has AES-GCM good for 2^24.5 */
};

static const char key_label[] = "trireme job key 1", identity[] = "trireme job";
static const unsigned char cipher_id[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

struct tr__tls_key {
    atomic_int refs;
    SSL_CTX *context;
    BIO_METHOD *carries; /* a session's bytes; OpenSSL's own memory BIOs wipe and copy each of them once more */
    unsigned char bytes[KEY_BYTES];
};

typedef struct queue { /* of encrypted bytes: [begin, end) are there */
    char *bytes;
    size_t begin, end, capacity;
} queue;

struct tr__tls {
    tr__tls_key *key;
    SSL *ssl;
    queue in, out;
    bool key_differs;
    size_t records; /* written under this key */
};

/* ---- Encrypted bytes --------------------------------------------------------------------------------------------- */

/* Room for `count` bytes behind those that are there; NULL without memory. */
static char *room_for(queue *q, size_t count)
{
    if (q->begin > 0 && (q->begin == q->end || count > q->capacity - q->end)) {
        memmove(q->bytes, q->bytes + q->begin, q->end - q->begin);
        q->end -= q->begin;
        q->begin = 0;
    }
    if (!q->bytes || count > q->capacity - q->end) {
        size_t capacity = 2 * q->capacity > q->end + count ? 2 * q->capacity : q->end + count;
        char *bytes = realloc(q->bytes, capacity ? capacity : 1);
        if (!bytes) return NULL;
        q->bytes = bytes;
        q->capacity = capacity;
    }
    return q->bytes + q->end;
}

static int give(BIO *bio, char *bytes, int count)
{
    queue *q = &((tr__tls *)BIO_get_data(bio))->in;
    size_t there = q->end - q->begin, n = there < (size_t)count ? there : (size_t)count;
    BIO_clear_retry_flags(bio);
    if (n == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(bytes, q->bytes + q->begin, n);
    q->begin += n;
    return (int)n;
}

static int take(BIO *bio, const char *bytes, int count)
{
    queue *q = &((tr__tls *)BIO_get_data(bio))->out;
    char *room = room_for(q, (size_t)count);
    BIO_clear_retry_flags(bio);
    if (!room) return -1;
    memcpy(room, bytes, (size_t)count);
    q->end += (size_t)count;
    return count;
}

/* There is nothing to flush; all else that OpenSSL asks for we have not. */
static long control(BIO *bio, int what, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *make_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "trireme");
    if (method && BIO_meth_set_read(method, give) && BIO_meth_set_write(method, take) &&
        BIO_meth_set_ctrl(method, control))
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* ---- The key ----------------------------------------------------------------------------------------------------- */

/* The key in the form in which OpenSSL takes it: a session that never was. NULL without memory. */
static SSL_SESSION *key_session(SSL *ssl)
{
    const tr__tls_key *key = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, cipher_id);
    SSL_SESSION *session = cipher ? SSL_SESSION_new() : NULL;
    if (!session) return NULL;
    if (SSL_SESSION_set1_master_key(session, key->bytes, sizeof key->bytes) &&
        SSL_SESSION_set_cipher(session, cipher) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *hash, const unsigned char **id, size_t *id_bytes, SSL_SESSION **session)
{
    (void)hash; /* of our one cipher suite */
    *id = (const unsigned char *)identity;
    *id_bytes = sizeof identity - 1;
    *session = key_session(ssl);
    return *session != NULL;
}

/* Who offers another key goes on without one, and fails, as there are no certificates. */
static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **session)
{
    *session = NULL;
    if (id_bytes != sizeof identity - 1 || memcmp(id, identity, id_bytes) != 0) return 1;
    *session = key_session(ssl);
    return *session != NULL;
}

static bool configure(SSL_CTX *context)
{
    SSL_CTX_set_psk_use_session_callback(context, offer_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT); /* records that only pretend to be TLS 1.2 */
    return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) &&
           SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) &&
           SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") &&
           SSL_CTX_set1_groups_list(context, "X25519:P-256") && SSL_CTX_set_num_tickets(context, 0);
}

tr_status tr__tls_key_new(const char *token, tr__tls_key **key)
{
    size_t length = strlen(token);
    if (length == 0 || length > TR__TOKEN_MAX)
        return tr__fail(TR_INVALID, "a token has 1 … %d bytes, not %zu", TR__TOKEN_MAX, length);
    tr__tls_key *k = OPENSSL_zalloc(sizeof *k);
    if (!k) return tr__fail(TR_NO_MEMORY, "no memory for the job's key");
    k->refs = 1;
    unsigned bytes = KEY_BYTES;
    ERR_clear_error();
    k->context = SSL_CTX_new(TLS_method());
    k->carries = make_method();
    bool fine = k->context && k->carries && SSL_CTX_set_app_data(k->context, k) && configure(k->context) &&
                HMAC(EVP_sha256(), key_label, sizeof key_label - 1, (const unsigned char *)token, length, k->bytes,
                     &bytes);
    if (fine) {
        *key = k;
        return TR_OK;
    }
    char why[160];
    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    tr__tls_key_unref(k);
    return tr__fail(TR_UNSUPPORTED, "OpenSSL cannot do TLS 1.3 with a pre-shared key here: %s", why);
}

tr__tls_key *tr__tls_key_ref(tr__tls_key *key)
{
    if (key) atomic_fetch_add(&key->refs, 1);
    return key;
}

bool tr__tls_key_same(const tr__tls_key *a, const tr__tls_key *b)
{
    return a == b || (a && b && CRYPTO_memcmp(a->bytes, b->bytes, KEY_BYTES) == 0);
}

void tr__tls_key_unref(tr__tls_key *key)
{
    if (!key || atomic_fetch_sub(&key->refs, 1) > 1) return;
    SSL_CTX_free(key->context);
    BIO_meth_free(key->carries);
    OPENSSL_clear_free(key, sizeof *key);
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

tr__tls *tr__tls_new(tr__tls_key *key, tr__tls_side side)
{
    tr__tls *t = calloc(1, sizeof *t);
    BIO *bio = t ? BIO_new(key->carries) : NULL;
    SSL *ssl = bio ? SSL_new(key->context) : NULL;
    if (!ssl) {
        BIO_free(bio);
        free(t);
        return NULL;
    }
    t->key = tr__tls_key_ref(key);
    t->ssl = ssl;
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio); /* which now belongs to it */
    if (side == TR__TLS_SERVER) {
        SSL_set_accept_state(ssl);
    } else {
        /* A server without the key may show a certificate instead. As we trust none, that fails. */
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
        SSL_set_connect_state(ssl);
    }
    return t;
}

void tr__tls_free(tr__tls *t)
{
    if (!t) return;
    SSL_free(t->ssl);
    tr__tls_key_unref(t->key);
    free(t->in.bytes);
    free(t->out.bytes);
    free(t);
}

char *tr__tls_room(tr__tls *t, size_t count)
{
    return room_for(&t->in, count);
}

void tr__tls_came(tr__tls *t, size_t count)
{
    t->in.end += count;
}

bool tr__tls_feed(tr__tls *t, const void *bytes, size_t count)
{
    char *room = room_for(&t->in, count);
    if (!room) return count == 0;
    memcpy(room, bytes, count);
    t->in.end += count;
    return true;
}

/* A server finds that the client's proof fits another key, and tells it so with an alert. An impostor without the key
 * can only fail or show a certificate. */
static void note_reason(tr__tls *t)
{
    for (unsigned long error; (error = ERR_get_error()) != 0;) {
        int reason = ERR_GET_REASON(error);
        if (ERR_GET_LIB(error) != ERR_LIB_SSL) continue;
        if (reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM ||
            reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
            reason == SSL_AD_REASON_OFFSET + SSL_AD_ILLEGAL_PARAMETER ||
            reason == SSL_AD_REASON_OFFSET + SSL_AD_DECRYPT_ERROR ||
            reason == SSL_AD_REASON_OFFSET + SSL_AD_HANDSHAKE_FAILURE ||
            reason == SSL_AD_REASON_OFFSET + SSL_AD_UNKNOWN_PSK_IDENTITY)
            t->key_differs = true;
    }
}

int tr__tls_handshake(tr__tls *t)
{
    ERR_clear_error();
    int done = SSL_do_handshake(t->ssl);
    if (done == 1 && tr__tls_ready(t)) return 1;
    if (done != 1 && SSL_get_error(t->ssl, done) == SSL_ERROR_WANT_READ) return 0;
    note_reason(t);
    return -1;
}

ssize_t tr__tls_read(tr__tls *t, void *bytes, size_t count)
{
    size_t got = 0;
    ERR_clear_error();
    if (SSL_read_ex(t->ssl, bytes, count, &got) == 1) return (ssize_t)got;
    if (SSL_get_error(t->ssl, 0) == SSL_ERROR_WANT_READ) return 0;
    return -1;
}

bool tr__tls_holds(const tr__tls *t)
{
    return t->in.end > t->in.begin || SSL_pending(t->ssl) > 0;
}

bool tr__tls_renew(tr__tls *t)
{
    t->records = 0;
    ERR_clear_error();
    return SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
}

bool tr__tls_write(tr__tls *t, const void *bytes, size_t count)
{
    size_t written = 0;
    t->records += 1 + count / RECORD_BYTES;
    if (t->records > RECORDS_MOST && !tr__tls_renew(t)) return false;
    ERR_clear_error();
    return count == 0 || (SSL_write_ex(t->ssl, bytes, count, &written) == 1 && written == count);
}

size_t tr__tls_outgoing(const tr__tls *t, char **bytes)
{
    *bytes = t->out.bytes;
    return t->out.end;
}

void tr__tls_sent(tr__tls *t)
{
    t->out.end = 0;
}

bool tr__tls_ready(const tr__tls *t)
{
    return SSL_is_init_finished(t->ssl) && SSL_session_reused(t->ssl); /* reused: with the key, not a certificate */
}

/* OpenSSL takes the key as the session's once its binder, a MAC over the client's first message, fits. */
bool tr__tls_has_proof(const tr__tls *t)
{
    return SSL_session_reused(t->ssl);
}

bool tr__tls_key_differs(const tr__tls *t)
{
    return t->key_differs;
}
