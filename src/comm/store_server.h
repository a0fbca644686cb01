/*
 * The TCP store's server: a thread with an event loop that holds the map.
 */
#ifndef TR_COMM_STORE_SERVER_H
#define TR_COMM_STORE_SERVER_H

#include <trireme/comm.h>

typedef struct tr__server tr__server;

/* Serves on the address, or on a listening socket that it takes over (listen_fd > 0). token NULL: anyone may come,
 * so only over loopback. *port gets the port. */
tr_status tr__server_start(const char *host, int port, int listen_fd, const char *token, tr__server **server,
    int *bound_port);
/* Closes all connections and ends the thread. */
void tr__server_stop(tr__server *server);

/* How a token is told apart from others: always over its full length, so that the time says nothing. */
bool tr__token_equal(const char *token, const void *given, size_t given_bytes);

#endif
