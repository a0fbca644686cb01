/*
 * The TCP store's server from inside: its clients, and the map that they share. All of it runs in the server's thread.
 *
 *   server.c    listens, and lets clients in
 *   client.c    one connection: handshake, frames in and out
 *   request.c   what a client asks
 */
#ifndef TR_NET_STORE_CLIENT_H
#define TR_NET_STORE_CLIENT_H

#include "net/origin.h"
#include "net/store/frame.h"
#include "net/store/map.h"
#include "net/store/server.h"
#include "net/wire.h"

#include <pthread.h>
#include <uv.h>

typedef enum tr__client_state {
    TR__CLIENT_STRANGER, /* has said nothing yet that only a client can say */
    TR__CLIENT_GREETING, /* shakes hands, or has not said hello */
    TR__CLIENT_IDLE,     /* may ask */
    TR__CLIENT_WAITING,  /* for a key */
    TR__CLIENT_REPLYING, /* its answer is on its way */
    TR__CLIENT_CLOSING,
} tr__client_state;

typedef struct tr__ring {
    struct tr__ring *before, *after;
} tr__ring;

struct tr__server {
    uv_loop_t loop;
    uv_poll_t listener;
    int socket; /* of that; -1: none */
    uv_async_t stop;
    uv_timer_t again; /* until there may be memory and a descriptor for the next client */
    pthread_t thread;
    tr__map map;
    /* Rings of clients, the youngest after the head: those that have proved nothing, those in a handshake whose first message
     * was right, and those that may ask. */
    tr__ring strangers, greeting, admitted;
    int new_count, new_most; /* strangers and those that greet; how many there may be */
    int refusals;
    tr__origins origins; /* of the strangers */
    tr__map_value *name;  /* random, for clients that come again to know this server by */
    tr__tls_key *key; /* NULL: anyone may come */
    bool full;        /* of descriptors, and has said so */
    tr__server *next; /* of the shared ones */
    int users;
    char *host;       /* as the users name it; NULL: it is not shared */
    int port;
    struct {          /* the latest answer to a GATHER, as long as nothing changes */
        unsigned char *keys;
        size_t keys_bytes;
        tr__map_value *values; /* NULL: none */
    } gathered;
};

/* One frame is handled at a time, so a client costs at most a frame, its keys and a value, however slow it reads or
 * writes. */
typedef struct tr__client {
    tr__ring link; /* in one of the server's three */
    uv_poll_t poll;
    uv_timer_t timer; /* of the greeting, then of waits */
    int open_handles;
    tr__server *server;
    tr__client_state state;
    int origin;           /* of a STRANGER */
    tr__wire wire;
    bool begun;           /* its first byte has come */
    bool waits;           /* for room in the socket, too: to send the rest of a reply, or for its next turn */
    unsigned char *bytes; /* received and not handled */
    size_t used, capacity;
    tr__entry *entry; /* WAITING: what for */
    struct tr__client *next_waiter, **waiter_at;
    bool wants_value;
    unsigned char *keys; /* of a GATHER: all of them, */
    size_t keys_bytes;
    tr__list keys_left; /* and those behind the one that is waited for */
    tr__map_value *sending;
    unsigned char head[TR__FRAME_HEAD];
    struct iovec pieces[TR__FRAME_PIECES], *rest; /* of the reply; and what the wire has not taken */
    int rest_count;
} tr__client;

/* Makes a stranger of zeroed memory from calloc() and a connection that has come, which it takes over, or closes if it cannot
 * listen to it. */
void tr__client_begin(tr__client *client, tr__server *server, int socket);
void tr__client_close(tr__client *client);
void tr__clients_close(tr__ring *members);
/* Its hello has come, or it is to be told why it is refused: no timer closes it any more. */
void tr__client_admit(tr__client *client);
/* Closes one that has not said hello: of the strangers the oldest of an address that has the most, or, if there is none, the
 * oldest that greets. */
void tr__client_give_way(tr__server *server);
/* value NULL: none. It is sent from where it lies, to however many clients. */
void tr__client_reply(tr__client *client, tr__frame_code code, tr__map_value *value);

/* Answers a client's frame, or lets it wait. */
void tr__request_handle(tr__client *client, const tr__frame *frame);
/* Ends a wait without an answer. */
void tr__request_forget(tr__client *client);
/* Something has changed: the latest answer to a GATHER is out of date. */
void tr__request_changed(tr__server *server);

#endif
