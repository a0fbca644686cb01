/*
 * A crowd: clients that come to a TCP store all at once, each with a thread and a connection of its own, count themselves
 * in and wait for the last.
 */
#ifndef TR_CLI_CROWD_H
#define TR_CLI_CROWD_H

#include <stdbool.h>

typedef struct tr__crowd {
    const char *token; /* NULL: in the clear */
    int clients;
    char failure[512]; /* the first one */
} tr__crowd;

/* At a store of their own on loopback. False: `failure` says why. */
bool tr__crowd_meet(tr__crowd *crowd, double *seconds);

#endif
