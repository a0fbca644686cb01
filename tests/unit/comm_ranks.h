/*
 * What the tests of groups share: threads as ranks, numbers to send, buffers of every kind.
 */
#ifndef COMM_RANKS_H
#define COMM_RANKS_H

#include "comm_numbers.h"

#include <trireme/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MOST = 8, RANKS_ROOM = 256, JOIN_MS = 60000 }; /* most in tests of every size, and in any */

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

typedef struct rank rank;
typedef void (*rank_body)(rank *r);

struct rank {
    int number, world;
    tr_store *store;
    tr_group *group;
    rank_body body;
    const char *transport, *algorithms; /* as in tr_join_options */
    bool encrypt;                       /* the same */
    const int *hosts;                   /* a pretended host for each rank; NULL: this one */
    const void *arg;
    char failure[2048];
};

/* In a rank's thread, where cmocka's checks must not be used: notes the first failure and ends the body. */
#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            snprintf(r->failure, sizeof r->failure, "line %d: rank %d of %d: %.300s (%s)", __LINE__, r->number, \
                r->world, #condition, tr_error_message());                                                     \
            return;                                                                                            \
        }                                                                                                      \
    } while (0)
#define OK(expression) CHECK((expression) == TR_OK)
#define SAYS(words) CHECK(strstr(tr_error_message(), words))

/* In the test's own thread. */
#define FAILS(status_, expression, words)                                                                     \
    do {                                                                                                      \
        assert_int_equal((expression), status_);                                                              \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

tr_group *join_group(const rank *r, const char *name);
/* Runs body in a thread per rank, each in a group of its own that it has joined. */
void run_on(tr_store *store, int world, rank_body body, const void *arg);
void run(int world, rank_body body, const void *arg);
/* The same over TCP; algorithms may be NULL. */
void run_tcp(int world, rank_body body, const char *algorithms, const void *arg);
/* The same with ranks on pretended hosts. */
void run_hosts(const int *hosts, int world, rank_body body, const void *arg);

/* The same two through TLS: over TCP, and with ranks on pretended hosts where those are given. */
void run_tls(const int *hosts, int world, rank_body body, const void *arg);

/* A rank that stays away until all the others have given up on it: they say so, it waits for that. */
void say_given_up(rank *r);
void wait_until_given_up(rank *r);

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

typedef enum buffer_kind { PRIVATE, SHARED, MIXED, KINDS } buffer_kind;

void *make_buffer(buffer_kind kind, const rank *r, size_t bytes);
void free_buffer(buffer_kind kind, const rank *r, void *memory);

#endif
