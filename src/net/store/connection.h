/*
 * A client's connection to the TCP store: blocking, with deadlines, through TLS where the job has a token.
 */
#ifndef TR_NET_STORE_CONNECTION_H
#define TR_NET_STORE_CONNECTION_H

#include "net/store/frame.h"
#include "net/wire.h"

enum { TR__SERVER_NAME = 17 };

typedef struct tr__connection {
    tr__wire wire;
    /* Of one that could not be opened: nobody listens there; or it may be opened later, also where a server is known to be, as a
     * link is cut, or the server had no place for us. */
    bool refused, lost;
    char server[TR__SERVER_NAME]; /* which tells servers apart that follow each other at an address */
} tr__connection;

/* Where to, and as whom. */
typedef struct tr__destination {
    const char *name; /* "store 10.0.0.1:29500", for messages */
    const char *host;
    int port;
    tr__tls_key *key; /* NULL: the job has no token */
    bool insecure;    /* without a token, to other addresses than loopback too */
} tr__destination;

/* One try over all addresses of the host. TR_IO: trying again may help. deadline is by tr__now_ns(). tr__wire_close() closes it. */
tr_status tr__connection_open(const tr__destination *to, int64_t deadline, tr__connection *connection);

/* A request and its reply. *bytes gets the reply's bytes, to be freed, in which frame lies. An errno; EPROTO: the other
 * end is no store; EBADMSG: the connection was tampered with. */
int tr__connection_exchange(tr__connection *connection, const tr__frame *request, int64_t deadline, tr__frame *frame,
    unsigned char **bytes);

#endif
