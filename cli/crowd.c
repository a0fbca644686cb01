#include "crowd.h"

#include "clock.h"
#include "options.h"

#include <trireme/comm.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { STACK = 256 << 10, TIMEOUT_MS = 100000 };

typedef struct meeting {
    tr__crowd *crowd;
    int port;
    pthread_mutex_t lock; /* of the failure */
} meeting;

static tr_status come_and_meet(const meeting *m)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", m->port, .token = m->crowd->token, .timeout_ms = TIMEOUT_MS);
    int64_t here;
    TRY(tr_store_add(store, "here", 1, &here));
    return here == m->crowd->clients ? tr_store_set(store, "go", "", 0) : tr_store_wait(store, "go", TIMEOUT_MS);
}

static void note_failure(meeting *m, const char *why)
{
    pthread_mutex_lock(&m->lock);
    if (!m->crowd->failure[0]) snprintf(m->crowd->failure, sizeof m->crowd->failure, "%s", why);
    pthread_mutex_unlock(&m->lock);
}

static void *be_client(void *arg)
{
    if (come_and_meet(arg) != TR_OK) note_failure(arg, tr_error_message());
    return NULL;
}

static tr_status let_come(meeting *m, tr_store *store, pthread_t *threads)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK);
    int started = 0;
    while (started < m->crowd->clients && pthread_create(&threads[started], &small, be_client, m) == 0) started++;
    pthread_attr_destroy(&small);
    tr_status status = TR_OK;
    if (started < m->crowd->clients) {
        note_failure(m, "cannot start so many threads");
        status = tr_store_set(store, "go", "", 0); /* for those that wait */
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return status;
}

bool tr__crowd_meet(tr__crowd *crowd, double *seconds)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = crowd->token);
    pthread_t *threads = malloc((size_t)crowd->clients * sizeof *threads);
    meeting m = {.crowd = crowd, .port = tr_store_port(store), .lock = PTHREAD_MUTEX_INITIALIZER};
    tr_status status = threads ? tr_status_of(store) : TR_NO_MEMORY;
    double began = tr__now_us();
    if (status == TR_OK) status = let_come(&m, store, threads);
    *seconds = 1e-6 * (tr__now_us() - began);
    if (status != TR_OK) note_failure(&m, threads ? tr_error_message() : "out of memory");
    free(threads);
    return !crowd->failure[0];
}
