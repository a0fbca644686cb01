/*
 * The bytes of one connection between ranks: in the clear, in records with a checksum (checked.h), or through TLS
 * (net/tls.h). Nothing here waits: what the socket does not take or have now is EAGAIN, as from the system calls.
 *
 * With checksums, what was not taken must be offered again first. Through TLS, what was sent may still lie here encrypted, so a
 * sender goes on until tr__wire_pending() is over. In both, what came may lie here, so poll() says all only after a receive
 * that had EAGAIN, or where tr__wire_holds() says no. A TLS session is used by one thread at a time, in both directions; others
 * by one for each direction.
 */
#ifndef TR_NET_WIRE_H
#define TR_NET_WIRE_H

#include "net/checked.h"
#include "net/tls.h"

typedef struct tr__wire {
    int socket;   /* -1: none */
    tr__tls *tls; /* NULL: in the clear */
    size_t sent;  /* bytes of tr__tls_outgoing() that the socket has taken */
    size_t heard; /* bytes of a handshake that is not done */
    bool checked; /* in records with a checksum: set before the first of them */
    tr__checked_sender out;
    tr__checked_receiver in;
} tr__wire;

/* Sets a wire up on a socket, which it takes over; key NULL: in the clear. False without memory; the socket is closed. */
bool tr__wire_open(tr__wire *w, int socket, tr__tls_key *key, tr__tls_side side);
/* Closes the socket and makes it none. */
void tr__wire_close(tr__wire *w);

/* From here on through TLS; what has come behind the last record is the beginning of it. False without memory. */
bool tr__wire_encrypt(tr__wire *w, tr__tls_key *key, tr__tls_side side);
/* For a server, whose wire is still in the clear: looks at the first byte that has come, and with a key goes on through TLS.
 * 1: begun; 0: nothing has come yet; -1: failed, and errno: EPROTO: only one of the two ends means to speak TLS. */
int tr__wire_begin(tr__wire *w, tr__tls_key *key);
/* Begins the handshake, or carries it on with what has come. 1: done, or there is none; 0: more must come; -1: failed, and errno:
 * EPROTO: what came is no handshake, or one with another key. */
int tr__wire_shake_hands(tr__wire *w);
/* As sendmsg(): how much was taken, or -1 and errno. Without parts it only sends what is pending. */
ssize_t tr__wire_send(tr__wire *w, const struct iovec *parts, int count);
/* Sends parts up to their end, and what is pending: 0; or an errno, EAGAIN where the socket does not take all of it: then they are
 * what is left. */
int tr__wire_push(tr__wire *w, struct iovec **parts, int *count);
/* As recvmsg(): how much there is, 0 at the end, or -1 and errno; EBADMSG: what came is damaged. stays: the last part's memory
 * comes again in the next call, behind what was counted, so that bytes which do not count yet may lie there; in.placed says how
 * many. */
ssize_t tr__wire_receive(tr__wire *w, const struct iovec *parts, int count, bool stays);
/* Something that was taken has not gone to the socket. */
bool tr__wire_pending(const tr__wire *w);
/* Something has come that poll() does not know of. */
static inline bool tr__wire_holds(const tr__wire *w)
{
    return w->tls ? tr__tls_holds(w->tls) : w->checked && tr__checked_holds(&w->in);
}
/* Nothing that has come lies here, and the socket gave less than it was asked for when it was read last: with edges from epoll, there
 * is no need to ask again. */
static inline bool tr__wire_drained(const tr__wire *w) { return w->in.drained && !tr__wire_holds(w); }
/* Is it errno of a call that must be made again, when the socket is ready? */
bool tr__wire_would_block(void);
/* Waits until the socket is ready for poll()'s events, or for a time of tr__now_ns(): 0, or an errno (ETIMEDOUT). */
int tr__wire_await(int socket, short events, int64_t deadline);

#endif
