/*
 * The TCP store's client: blocking requests with a deadline. A request takes a connection that is idle or opens one
 * more, so that a thread which waits for a key does not keep others from setting it.
 *
 * A connection that breaks in a request, or brings what is no answer, is replaced, and the request asked again, if doing it
 * twice is as good as once: get, wait, gather and set, but not add, compare_set and delete, of which nobody knows whether they have
 * been done. The server has to be the same one, for another has other values; where nobody listens any more, it is gone.
 */
#include "base/clock.h"
#include "base/given.h"
#include "base/memory.h"
#include "net/store/connection.h"
#include "net/store/server.h"
#include "net/store/store.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    GRACE_MS = 5000,      /* that the server's answer to a wait may be late */
    AT_ONCE_MS = 1000,    /* in which it says what is there now */
    IDLE_MOST = 8,        /* connections that are kept for the next request */
    AGAIN_MS = 5000,      /* in which a request whose connection broke finds another */
    RETRY_FIRST_MS = 10,  /* between two tries to connect, doubling up to */
    RETRY_MOST_MS = 200,
};

typedef struct tcp_store {
    tr_store store;
    tr__server *server; /* when this process serves */
    char name[TR__SERVER_NAME]; /* the server's */
    bool insecure;
    pthread_mutex_t lock;
    tr__connection idle[IDLE_MOST];
    int idle_count;
} tcp_store;

/* For the answer to a wait; a timeout near INT_MAX, which means "no limit", leaves no room for grace. */
static int with_grace(int timeout_ms)
{
    return timeout_ms < INT_MAX - GRACE_MS ? timeout_ms + GRACE_MS : INT_MAX;
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* Tries until the deadline: a link may be cut for a while, a crowd of strangers may have taken our place, and before the first
 * connection the server may not have started yet. */
static tr_status open_connection(const tcp_store *s, int64_t deadline, bool first, tr__connection *connection)
{
    tr__destination to = {s->store.name, s->store.host, s->store.port, s->store.key, s->insecure};
    int64_t began = tr__now_ns();
    for (int pause_ms = RETRY_FIRST_MS;; pause_ms = 2 * pause_ms < RETRY_MOST_MS ? 2 * pause_ms : RETRY_MOST_MS) {
        tr_status status = tr__connection_open(&to, deadline, connection);
        if (status != TR_IO || !(connection->lost || first)) return status;
        int64_t tried_ms = (deadline - began + 500000) / 1000000;
        if (tr__in_ms(pause_ms) >= deadline)
            return tr__fail(TR_TIMEOUT, "%s, tried for %g s", tr_error_message(), (double)tried_ms / 1000);
        nanosleep(&(struct timespec){.tv_nsec = pause_ms * 1000000L}, NULL);
    }
}

/* The server says nothing unasked: what can be read from an idle connection is its end. */
static bool take_idle(tcp_store *s, tr__connection *c)
{
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool idle = s->idle_count > 0;
        if (idle) *c = s->idle[--s->idle_count];
        pthread_mutex_unlock(&s->lock);
        if (!idle || poll(&(struct pollfd){.fd = c->wire.socket, .events = POLLIN}, 1, 0) == 0) return idle;
        tr__wire_close(&c->wire);
    }
}

static tr_status take_connection(tcp_store *s, int64_t deadline, tr__connection *c)
{
    if (take_idle(s, c)) return TR_OK;
    TR__TRY(open_connection(s, deadline, false, c));
    if (strcmp(c->server, s->name) == 0) return TR_OK;
    tr__wire_close(&c->wire);
    c->refused = true; /* by the one that we know */
    return tr__fail(TR_IO, "%s: its server is gone, and another one serves there", s->store.name);
}

static void give_back(tcp_store *s, tr__connection *c)
{
    pthread_mutex_lock(&s->lock);
    bool room = s->idle_count < IDLE_MOST;
    if (room) s->idle[s->idle_count++] = *c;
    pthread_mutex_unlock(&s->lock);
    if (!room) tr__wire_close(&c->wire);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static tr_status failed(const tcp_store *s, const char *key, int error, int timeout_ms)
{
    if (error == ETIMEDOUT)
        return tr__fail(TR_TIMEOUT, "%s: no answer about key '%s' within %g s", s->store.name, key,
                        timeout_ms / 1000.0);
    if (error == EPROTO || error == EBADMSG)
        return tr__fail(TR_FORMAT, "%s: damaged answer about key '%s'", s->store.name, key);
    return tr__fail_errno(error == ENOMEM ? TR_NO_MEMORY : TR_IO, error, "%s: lost while asking about key '%s'",
        s->store.name, key);
}

static tr_status refused(const tcp_store *s, const char *key, const tr__frame *request, tr__frame_code code)
{
    switch (code) {
    case TR__REPLY_TIMEOUT: return tr__store_timed_out(&s->store, key, (int)request->timeout_ms);
    case TR__REPLY_NO_NUMBER: return tr__store_changed(&s->store, key, TR_FORMAT);
    case TR__REPLY_NO_MEMORY:
        return tr__fail(TR_NO_MEMORY, "%s: the server has no memory for key '%s'", s->store.name, key);
    case TR__REPLY_FULL:
        return tr__fail(TR_UNSUPPORTED, "%s: no room for %zu bytes of key '%s': what a store holds is limited, to 256 MiB unless "
                        "the one who serves it gives another .max_bytes", s->store.name, (size_t)request->value_bytes, key);
    case TR__REPLY_TOO_LARGE:
        return tr__fail(TR_UNSUPPORTED, "%s: the values of key '%s' and others that were asked for with it have more than "
                        "%d bytes together", s->store.name, key, TR__VALUE_MAX);
    default: return tr__fail(TR_FORMAT, "%s: unexpected answer about key '%s'", s->store.name, key);
    }
}

/* Once. *again: it failed, and may be asked again. */
static tr_status try_to_ask(tcp_store *s, const char *key, const tr__frame *request, int timeout_ms, int64_t connected_by,
    int64_t deadline, tr__frame *answer, unsigned char **received, bool *again)
{
    tr__connection connection;
    tr_status status = take_connection(s, connected_by, &connection);
    *again = status != TR_OK && !connection.refused;
    if (status != TR_OK) return status;
    int error = tr__connection_exchange(&connection, request, deadline, answer, received);
    bool repeatable = request->type != TR__FRAME_ADD && request->type != TR__FRAME_COMPARE_SET &&
                      request->type != TR__FRAME_DELETE;
    *again = error && repeatable && error != ETIMEDOUT && error != ENOMEM;
    if (!error) {
        give_back(s, &connection);
        return TR_OK;
    }
    tr__wire_close(&connection.wire);
    return failed(s, key, error, timeout_ms);
}

/* key is for messages. The answer lies in *received, to be freed. What went wrong first is what is told in the end. */
static tr_status exchange(tcp_store *s, const char *key, const tr__frame *request, int timeout_ms, tr__frame *answer,
    unsigned char **received)
{
    int64_t began = tr__now_ns(), deadline = tr__in_ms(timeout_ms), until = deadline;
    tr__frame rest = *request;
    bool again;
    tr_status first = try_to_ask(s, key, &rest, timeout_ms, deadline, deadline, answer, received, &again);
    if (!again) return first;
    tr__error *why = tr__error_take();
    tr_status status = first;
    if (tr__in_ms(AGAIN_MS) < until) until = tr__in_ms(AGAIN_MS);
    for (int pause_ms = 0; again && tr__now_ns() < until; pause_ms = pause_ms ? RETRY_MOST_MS : RETRY_FIRST_MS) {
        nanosleep(&(struct timespec){.tv_nsec = pause_ms * 1000000L}, NULL);
        int64_t passed_ms = (tr__now_ns() - began) / 1000000;
        rest.timeout_ms = passed_ms < request->timeout_ms ? request->timeout_ms - (uint32_t)passed_ms : 0;
        status = try_to_ask(s, key, &rest, timeout_ms, until, deadline, answer, received, &again);
    }
    if (status != TR_OK) {
        tr__fail_stored(why);
        status = first;
    }
    tr__error_unref(why);
    return status;
}

/* The request with its key; *value gets the reply's value, or NULL when there is none. */
static tr_status ask(tr_store *store, const char *key, tr__frame *request, int timeout_ms, void **value, size_t *bytes)
{
    tcp_store *s = (tcp_store *)store;
    tr__frame answer;
    unsigned char *received;
    request->key = key;
    request->key_bytes = strlen(key);
    TR__TRY(exchange(s, key, request, timeout_ms, &answer, &received));
    bool present = answer.code == TR__REPLY_OK;
    if (!present && answer.code != TR__REPLY_ABSENT) {
        free(received);
        return refused(s, key, request, answer.code);
    }
    if (value && present) {
        memmove(received, answer.value, answer.value_bytes);
        received[answer.value_bytes] = 0;
        *bytes = answer.value_bytes;
        *value = received;
        return TR_OK;
    }
    free(received);
    if (value) *value = NULL, *bytes = 0;
    return TR_OK;
}

static tr_status tcp_get(tr_store *store, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    tr__frame request = {.type = value ? TR__FRAME_GET : TR__FRAME_WAIT, .timeout_ms = (uint32_t)timeout_ms};
    return ask(store, key, &request, with_grace(timeout_ms), value, bytes);
}

static tr_status tcp_change(tr_store *store, const char *key, tr__change *c, int timeout_ms, void **value, size_t *bytes)
{
    static const tr__frame_type types[] = {[TR__CHANGE_SET] = TR__FRAME_SET, [TR__CHANGE_ADD] = TR__FRAME_ADD,
        [TR__CHANGE_COMPARE_SET] = TR__FRAME_COMPARE_SET, [TR__CHANGE_DELETE] = TR__FRAME_DELETE};
    tr__frame request = {.type = types[c->kind], .value = c->value, .value_bytes = c->bytes, .expected = c->expected,
        .expected_bytes = c->expected_bytes, .amount = c->amount};
    void *now = NULL;
    size_t now_bytes = 0;
    TR__TRY(ask(store, key, &request, timeout_ms, &now, &now_bytes));
    c->changed = now != NULL;
    if (c->kind == TR__CHANGE_ADD && now) c->sum = strtoll(now, NULL, 10);
    if (value)
        *value = now, *bytes = now_bytes;
    else
        free(now);
    return TR_OK;
}

/* The list of a GATHER, to be freed. */
static tr_status list_keys(const tr_store *store, const char *const *keys, int count, tr__list *list)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += TR__LIST_KEY + strlen(keys[i]);
    if (bytes > TR__VALUE_MAX)
        return tr__fail(TR_INVALID, "%s: %d keys asked for at once have %zu bytes; at most %d are allowed", store->name,
                        count, bytes, TR__VALUE_MAX);
    unsigned char *items = bytes ? malloc(bytes) : NULL, *at = items;
    if (!items) return tr__fail(TR_NO_MEMORY, "%s: no memory for %d keys", store->name, count);
    for (int i = 0; i < count; i++) at = tr__list_put_key(at, keys[i], strlen(keys[i]));
    *list = (tr__list){items, bytes};
    return TR_OK;
}

/* A value for each key, and nothing behind the last; only at a timeout may some be missing. */
static tr_status read_values(const tcp_store *s, const char *const *keys, int count, const tr__frame *answer,
    tr__store_value *values)
{
    tr__list list = {answer->value, answer->value_bytes};
    for (int i = 0; i < count; i++) {
        const void *value;
        if (!tr__list_take_value(&list, &value, &values[i].bytes) || (!value && answer->code == TR__REPLY_OK))
            return failed(s, keys[i], EPROTO, 0);
        if (!value) continue;
        values[i].data = malloc(values[i].bytes + 1);
        if (!values[i].data) return failed(s, keys[i], ENOMEM, 0);
        memcpy(values[i].data, value, values[i].bytes);
        ((char *)values[i].data)[values[i].bytes] = 0;
    }
    return list.bytes == 0 ? TR_OK : failed(s, keys[0], EPROTO, 0);
}

static tr_status tcp_gather(tr_store *store, const char *const *keys, int count, int timeout_ms, tr__store_value *values)
{
    tcp_store *s = (tcp_store *)store;
    tr__list list = {0};
    TR__TRY(list_keys(store, keys, count, &list));
    TR__FREED const void *items = list.items;
    TR__FREED unsigned char *received = NULL;
    tr__frame request = {.type = TR__FRAME_GATHER, .value = items, .value_bytes = list.bytes}, answer;
    request.timeout_ms = (uint32_t)timeout_ms;
    int patience_ms = timeout_ms ? with_grace(timeout_ms) : AT_ONCE_MS;
    TR__TRY(exchange(s, keys[0], &request, patience_ms, &answer, &received));
    if (answer.code == TR__REPLY_OK || answer.code == TR__REPLY_TIMEOUT) TR__TRY(read_values(s, keys, count, &answer, values));
    return answer.code == TR__REPLY_OK ? TR_OK : refused(s, keys[0], &request, answer.code);
}

static const tr__store_ops tcp_ops = {tcp_get, tcp_change, tcp_gather};

/* ---- The object -------------------------------------------------------------------------------------------------- */

static void tcp_destroy(void *self)
{
    tcp_store *s = self;
    for (int i = 0; i < s->idle_count; i++) tr__wire_close(&s->idle[i].wire);
    if (s->server) tr__server_stop(s->server);
    tr__tls_key_unref(s->store.key);
    if (s->store.ops) pthread_mutex_destroy(&s->lock);
}

static const tr__type tcp_type = {.name = "store", .size = sizeof(tcp_store), .destroy = tcp_destroy};

static tr_status check_options(const tr_store_tcp_options *o)
{
    if (!o->host || !o->host[0]) return tr__fail(TR_INVALID, "tr_store_tcp: a host is needed");
    if (strlen(o->host) >= sizeof((tr_store *)0)->host)
        return tr__fail(TR_INVALID, "tr_store_tcp: host '%.40s…' is too long", o->host);
    if (o->port < 0 || o->port > 65535 || (o->port == 0 && !o->serve))
        return tr__fail(TR_INVALID, "tr_store_tcp: port %d is not in %d … 65535", o->port, o->serve ? 0 : 1);
    if (TR__OR(o, max_bytes, 1) < 1)
        return tr__fail(TR_INVALID, "tr_store_tcp: .max_bytes is how much the store may hold, 1 and more, not %lld",
            (long long)o->max_bytes);
    if (TR__OR(o, timeout_ms, TR__STORE_TIMEOUT_MS) < 1)
        return tr__fail(TR_INVALID, "tr_store_tcp: a timeout of %d ms must be positive", o->timeout_ms);
    return TR_OK;
}

static tr_status open_store(tcp_store *s, const tr_store_tcp_options *o, bool shared)
{
    TR__TRY(check_options(o));
    pthread_mutex_init(&s->lock, NULL);
    s->store.ops = &tcp_ops;
    s->store.timeout_ms = TR__OR(o, timeout_ms, TR__STORE_TIMEOUT_MS);
    s->store.port = o->port;
    s->insecure = o->insecure;
    strcpy(s->store.host, o->host);
    s->store.anywhere = (o->token && o->token[0]) || o->insecure;
    if (o->token && o->token[0]) TR__TRY(tr__tls_key_new(o->token, &s->store.key));
    tr__server_options serve = {o->host, o->port, o->listen_fd, s->store.key, o->insecure,
        (size_t)TR__OR(o, max_bytes, TR__STORE_BYTES), shared};
    if (o->serve) TR__TRY(tr__server_start(&serve, &s->server, &s->store.port));
    snprintf(s->store.name, sizeof s->store.name, "store %s:%d", s->store.host, s->store.port);
    TR__TRY(open_connection(s, tr__in_ms(s->store.timeout_ms), true, &s->idle[0]));
    s->idle_count = 1;
    strcpy(s->name, s->idle[0].server);
    return TR_OK;
}

static tr_store *new_store(const tr_store_tcp_options *options, bool shared)
{
    tr_store_tcp_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tcp_store *s = tr__object_new(&tcp_type);
    if (!tr__error_of(s) && open_store(s, &o, shared) != TR_OK) tr__object_break(s);
    return &s->store;
}

tr_store *tr_store_tcp_with(const tr_store_tcp_options *options)
{
    return new_store(options, false);
}

tr_store *tr__store_tcp_shared(const tr_store_tcp_options *options)
{
    return new_store(options, true);
}
