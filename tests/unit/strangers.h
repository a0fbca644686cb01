/*
 * Strangers for tests of listeners: they connect to a port of the loopback without a pause, and stay without saying anything that
 * makes sense.
 */
#ifndef STRANGERS_H
#define STRANGERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct strangers {
    int port;
    int addresses; /* they come from 127.0.0.1 … 127.0.0.N */
    int pause_us;  /* from one to the next */
    int most;      /* that stay; the oldest go themselves */
    unsigned char first; /* what every third says before it is silent */
    atomic_int came;
    atomic_bool stop;
    pthread_t thread;
} strangers;

bool strangers_start(strangers *s);
/* Waits until so many have come. */
void strangers_await(const strangers *s, int count);
void strangers_stop(strangers *s);

/* Before whatever this thread sends, in a program that uses this file: a network with long round trips. */
extern _Thread_local unsigned sends_slow_us;

#endif
