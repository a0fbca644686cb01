/*
 * Plain sockets, for tests of what speaks through them.
 */
#ifndef TR_TESTS_SOCKETS_H
#define TR_TESTS_SOCKETS_H

int listen_on_loopback(int *port); /* which is any free one */
int call_loopback(int port);

#endif
