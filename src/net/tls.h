/*
 * TLS 1.3 with the job's key: both ends prove that they have the job's token, and all that follows is encrypted.
 *
 * The token is the only credential: key = HMAC-SHA256("trireme job key 1", token), an external pre-shared key, used with
 * an ephemeral X25519 exchange, so that the token does not open recorded connections later. No certificates, no tickets,
 * one cipher suite.
 *
 * This file does no input or output: a session is fed with the bytes that came and gives the bytes that must go, so
 * blocking sockets, event loops and fuzzers all can carry it.
 */
#ifndef TR_NET_TLS_H
#define TR_NET_TLS_H

#include <trireme/base.h>

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    TR__TOKEN_MAX = 256,
    TR__TLS_RECORD = 0x16,       /* the first byte of a connection that speaks TLS */
    TR__TLS_HANDSHAKE_MAX = 8192 /* bytes: more than an honest handshake takes in either direction */
};

/* The key, for any number of sessions in any thread. */
typedef struct tr__tls_key tr__tls_key;
typedef struct tr__tls tr__tls;

tr_status tr__tls_key_new(const char *token, tr__tls_key **key);
tr__tls_key *tr__tls_key_ref(tr__tls_key *key);
bool tr__tls_key_same(const tr__tls_key *a, const tr__tls_key *b); /* or neither is one */
void tr__tls_key_unref(tr__tls_key *key); /* NULL: nothing */

typedef enum tr__tls_side { TR__TLS_CLIENT, TR__TLS_SERVER } tr__tls_side;
tr__tls *tr__tls_new(tr__tls_key *key, tr__tls_side side); /* NULL without memory */
void tr__tls_free(tr__tls *tls);                           /* NULL: nothing */

/* Where the next bytes from the other end may be put, up to count; NULL without memory. Then how many have come there. */
char *tr__tls_room(tr__tls *tls, size_t count);
void tr__tls_came(tr__tls *tls, size_t count);
/* The same for bytes that have come elsewhere; all of them are taken. False without memory. */
bool tr__tls_feed(tr__tls *tls, const void *bytes, size_t count);
/* Carries the handshake on; a client begins it so. 1: done; 0: more must come first; -1: failed. Each time bytes may
 * have to go, and after a failure too: they tell the other end why. */
int tr__tls_handshake(tr__tls *tls);
/* What the other end said, up to count bytes, after the handshake. 0: more must come first; -1: the session has failed,
 * or was ended by the other end. */
ssize_t tr__tls_read(tr__tls *tls, void *bytes, size_t count);
/* Bytes that came have not been read yet. */
bool tr__tls_holds(const tr__tls *tls);
/* Encrypts all of it; after the handshake. Changes its key before that has been used for too much. */
bool tr__tls_write(tr__tls *tls, const void *bytes, size_t count);
/* What is written next is under a new key. */
bool tr__tls_renew(tr__tls *tls);
/* The bytes that must go to the other end; they stay until tr__tls_sent(), and move with the next call that adds some. */
size_t tr__tls_outgoing(const tr__tls *tls, char **bytes);
void tr__tls_sent(tr__tls *tls);

/* Both ends have proved that they have the token. */
bool tr__tls_ready(const tr__tls *tls);
/* For a server, earlier: what the client said first was made with the token. It may be a recording, whose sender gets no further. */
bool tr__tls_has_proof(const tr__tls *tls);
/* After a failed handshake: the two tokens differ (as against bytes that are no TLS, or a session that was cut). */
bool tr__tls_key_differs(const tr__tls *tls);

#endif
