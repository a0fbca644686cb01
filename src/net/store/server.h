/*
 * The TCP store's server: a thread with an event loop that holds the map.
 */
#ifndef TR_NET_STORE_SERVER_H
#define TR_NET_STORE_SERVER_H

#include "net/tls.h"

typedef struct tr__server tr__server;

typedef struct tr__server_options {
    const char *host;
    int port;         /* 0: any free one */
    int listen_fd;    /* > 0: a listening socket to take over instead */
    tr__tls_key *key; /* NULL: anyone may come, and all is in clear text: over loopback only, unless */
    bool insecure;    /* the user says that this is meant */
    size_t max_bytes; /* that the store may hold */
    bool shared;      /* with whoever in this process asks for the same host, port and key */
} tr__server_options;

/* *port gets the port. */
tr_status tr__server_start(const tr__server_options *options, tr__server **server, int *port);
/* Closes all connections and ends the thread; of a shared one, when its last user stops it. */
void tr__server_stop(tr__server *server);

#endif
