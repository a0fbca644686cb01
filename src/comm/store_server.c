#include "comm/store_server.h"

#include "base/log.h"
#include "base/object.h"
#include "base/thread.h"
#include "comm/store.h"
#include "comm/store_connection.h"
#include "comm/store_map.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

enum {
    BACKLOG = 4096,
    GREETING_MS = 10000,      /* for handshake and hello */
    GREETING_MOST = 4096,     /* clients at that; when there are more, the oldest goes */
    GREETING_BYTES = 1024,    /* the longest frame of a client that has not said hello */
    BUFFER = 4096,            /* room for what comes, at least */
    KEPT_BUFFER = 64 << 10,   /* larger ones are freed when they are empty */
    SCRATCH = 64 << 10,       /* read at once */
    PART = 64 << 10,          /* encrypted at once: what a slow reader under TLS costs */
    SPARE_DESCRIPTORS = 256,  /* left when the limit is raised: the program takes some as well */
    LOGGED_REFUSALS = 10,     /* so that who hammers at the door does not fill the log */
};

typedef enum client_state {
    GREETING, /* shakes hands, or has not said hello */
    IDLE,     /* may ask */
    WAITING,  /* for a key */
    REPLYING, /* its answer is on its way */
    REFUSED,  /* the same, and then it goes */
    CLOSING,
} client_state;

typedef struct ring {
    struct ring *before, *after;
} ring;

/* One frame is handled at a time, so a client costs at most a frame and a value, however slow it reads or writes. */
typedef struct client {
    ring link; /* among the server's guests, or those at the door */
    uv_tcp_t tcp;
    uv_timer_t timer; /* of the greeting, then of waits */
    uv_write_t write;
    int open_handles;
    tr__server *server;
    client_state state;
    tr__tls *tls;         /* NULL: clear text */
    size_t greeting_used; /* raw bytes that came while GREETING */
    unsigned char *bytes; /* received and not handled */
    size_t used, capacity;
    tr__entry *entry; /* WAITING: what for */
    struct client *next_waiter, **waiter_at;
    bool wants_value;
    tr__value *sending;
    unsigned char head[TR__FRAME_HEAD];
    struct iovec rest[TR__FRAME_PIECES]; /* of the reply, not yet encrypted or handed to libuv */
    int rest_count;
} client;

struct tr__server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_async_t stop;
    pthread_t thread;
    tr__map map;
    ring greeting, guests; /* rings of clients, the youngest after the head */
    int greeting_count, refusals;
    tr__tls_key *key; /* NULL: anyone may come */
    bool full;        /* of descriptors, and has said so */
    char scratch[SCRATCH];
};

/* ---- Clients come and go ----------------------------------------------------------------------------------------- */

static void stop_waiting(client *c)
{
    if (!c->entry) return;
    *c->waiter_at = c->next_waiter;
    if (c->next_waiter) c->next_waiter->waiter_at = c->waiter_at;
    tr__map_prune(&c->server->map, c->entry);
    c->entry = NULL;
}

static void put_into(ring *members, client *c)
{
    c->link = (ring){members, members->after};
    members->after->before = &c->link;
    members->after = &c->link;
}

static void take_out(client *c)
{
    c->link.before->after = c->link.after;
    c->link.after->before = c->link.before;
    if (c->state == GREETING) c->server->greeting_count--;
}

/* It has greeted, well or badly. */
static void let_past(client *c)
{
    uv_timer_stop(&c->timer);
    take_out(c);
    put_into(&c->server->guests, c);
}

static void on_closed(uv_handle_t *handle)
{
    client *c = handle->data;
    if (--c->open_handles > 0) return;
    tr__value_unref(c->sending);
    tr__tls_free(c->tls);
    free(c->bytes);
    free(c);
}

static void close_client(client *c)
{
    if (c->state == CLOSING) return;
    take_out(c);
    c->state = CLOSING;
    stop_waiting(c);
    uv_close((uv_handle_t *)&c->tcp, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

static void close_ring(ring *members)
{
    while (members->after != members) close_client((client *)members->after);
}

/* One line for the person who mixed up two tokens. */
static void log_refusal(client *c, const char *why)
{
    tr__server *s = c->server;
    if (++s->refusals > LOGGED_REFUSALS) return;
    struct sockaddr_storage from;
    int length = sizeof from;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&from, &length) == 0)
        getnameinfo((struct sockaddr *)&from, (socklen_t)length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    tr__log(TR_LOG_WARN, "store: turned %s port %s away: %s%s", host, port, why,
            s->refusals == LOGGED_REFUSALS ? "; more of these will not be reported" : "");
}

static void work_on(client *c);

static void send_more(client *c);

static void on_written(uv_write_t *write, int error)
{
    client *c = write->data;
    if (c->state == CLOSING) return;
    if (!error && c->rest_count > 0) {
        send_more(c);
        return;
    }
    if (c->tls) tr__tls_sent(c->tls);
    tr__value_unref(c->sending);
    c->sending = NULL;
    if (error || c->state == REFUSED) {
        close_client(c);
        return;
    }
    c->state = IDLE;
    work_on(c);
}

/* Encrypts the next part of the reply. */
static bool encrypt_part(client *c, uv_buf_t *buffer)
{
    tr__tls_sent(c->tls);
    struct iovec *piece = c->rest;
    for (size_t room = PART; room > 0 && c->rest_count > 0;) {
        size_t part = piece->iov_len < room ? piece->iov_len : room;
        if (!tr__tls_write(c->tls, piece->iov_base, part)) return false;
        room -= part;
        piece->iov_base = (char *)piece->iov_base + part;
        piece->iov_len -= part;
        if (piece->iov_len == 0) memmove(piece, piece + 1, (size_t)--c->rest_count * sizeof *piece);
    }
    char *bytes;
    size_t count = tr__tls_outgoing(c->tls, &bytes);
    *buffer = uv_buf_init(bytes, (unsigned)count);
    return true;
}

static void send_more(client *c)
{
    uv_buf_t buffers[TR__FRAME_PIECES];
    unsigned count = 1;
    if (!c->tls) {
        count = (unsigned)c->rest_count;
        for (unsigned i = 0; i < count; i++)
            buffers[i] = uv_buf_init(c->rest[i].iov_base, (unsigned)c->rest[i].iov_len);
        c->rest_count = 0;
    } else if (!encrypt_part(c, buffers)) {
        close_client(c);
        return;
    }
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, buffers, count, on_written) != 0) close_client(c);
}

/* value NULL: none. It is sent from where it lies, to however many clients. */
static void reply(client *c, tr__frame_code code, tr__value *value)
{
    tr__frame frame = {.type = TR__FRAME_REPLY, .code = code};
    if (value) {
        frame.value = value->data;
        frame.value_bytes = value->bytes;
        value->refs++;
    }
    c->sending = value;
    c->state = code == TR__REPLY_REFUSED ? REFUSED : REPLYING;
    c->rest_count = tr__frame_pieces(&frame, c->head, c->rest);
    send_more(c);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void on_timeout(uv_timer_t *timer)
{
    client *c = timer->data;
    if (c->state != WAITING) {
        close_client(c); /* has not greeted */
        return;
    }
    stop_waiting(c);
    reply(c, TR__REPLY_TIMEOUT, NULL);
}

static void wait_for(client *c, tr__entry *entry, uint32_t timeout_ms)
{
    client *first = entry->waiters;
    c->entry = entry;
    c->next_waiter = first;
    c->waiter_at = (client **)&entry->waiters;
    if (first) first->waiter_at = &c->next_waiter;
    entry->waiters = c;
    c->state = WAITING;
    uv_timer_start(&c->timer, on_timeout, timeout_ms, 0);
}

/* The key has a value now. */
static void wake_waiters(tr__entry *entry)
{
    while (entry->waiters) {
        client *c = entry->waiters;
        stop_waiting(c); /* which keeps the entry, as it has a value */
        uv_timer_stop(&c->timer);
        reply(c, TR__REPLY_OK, c->wants_value ? entry->value : NULL);
    }
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static tr__frame_code code_of(int status)
{
    return status == TR_OK ? TR__REPLY_OK : status == TR_FORMAT ? TR__REPLY_NO_NUMBER : TR__REPLY_NO_MEMORY;
}

static void look_up(client *c, const tr__frame *f)
{
    c->wants_value = f->type == TR__FRAME_GET;
    tr__entry *entry = tr__map_find(&c->server->map, f->key, f->key_bytes, f->timeout_ms > 0);
    if (entry && entry->value)
        reply(c, TR__REPLY_OK, c->wants_value ? entry->value : NULL);
    else if (entry && f->timeout_ms > 0)
        wait_for(c, entry, f->timeout_ms);
    else
        reply(c, f->timeout_ms > 0 ? TR__REPLY_NO_MEMORY : TR__REPLY_TIMEOUT, NULL);
}

static void change(client *c, const tr__frame *f)
{
    tr__entry *entry = tr__map_find(&c->server->map, f->key, f->key_bytes, true);
    if (!entry) {
        reply(c, TR__REPLY_NO_MEMORY, NULL);
        return;
    }
    int64_t sum;
    bool changed;
    int status = f->type == TR__FRAME_SET ? tr__map_set(entry, f->value, f->value_bytes)
                 : f->type == TR__FRAME_ADD
                     ? tr__map_add(entry, f->amount, &sum)
                     : tr__map_compare_set(entry, f->expected, f->expected_bytes, f->value, f->value_bytes, &changed);
    tr__frame_code code = code_of(status);
    if (code == TR__REPLY_OK && !entry->value) code = TR__REPLY_ABSENT;
    reply(c, code, f->type == TR__FRAME_SET || code != TR__REPLY_OK ? NULL : entry->value);
    if (entry->value) wake_waiters(entry);
    tr__map_prune(&c->server->map, entry);
}

static void handle(client *c, const tr__frame *f)
{
    bool hello = f->type == TR__FRAME_HELLO;
    if (hello != (c->state == GREETING) || f->type == TR__FRAME_REPLY) {
        close_client(c);
    } else if (hello) {
        let_past(c);
        reply(c, TR__REPLY_OK, NULL);
    } else if (f->type == TR__FRAME_GET || f->type == TR__FRAME_WAIT) {
        look_up(c, f);
    } else {
        change(c, f);
    }
}

/* Takes a frame out of what has come. */
static void consume(client *c, size_t bytes)
{
    c->used -= bytes;
    memmove(c->bytes, c->bytes + bytes, c->used);
    if (c->used > 0 || c->capacity <= KEPT_BUFFER) return;
    free(c->bytes);
    c->bytes = NULL;
    c->capacity = 0;
}

static void work_on(client *c)
{
    while (c->state == GREETING || c->state == IDLE) {
        tr__frame frame;
        size_t limit = c->state == GREETING ? GREETING_BYTES : TR__FRAME_MAX;
        ssize_t bytes = tr__frame_parse(c->bytes, c->used, limit, &frame);
        if (bytes == 0) return;
        if (bytes < 0)
            close_client(c);
        else
            handle(c, &frame);
        if (c->state != CLOSING) consume(c, (size_t)bytes);
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Room for what has really come, not for what a header promises. */
static bool make_room(client *c, size_t bytes)
{
    size_t limit = c->state == GREETING ? GREETING_BYTES : TR__FRAME_MAX, capacity = c->capacity;
    if (c->used >= limit) return false; /* it talks while it should listen */
    while (capacity - c->used < bytes) capacity = capacity ? 2 * capacity : BUFFER;
    if (capacity == c->capacity) return true;
    unsigned char *grown = realloc(c->bytes, capacity);
    if (!grown) return false;
    c->bytes = grown;
    c->capacity = capacity;
    return true;
}

/* False: the client must go. */
static bool take_plain(client *c, const char *bytes, size_t count)
{
    if (!make_room(c, count)) return false;
    memcpy(c->bytes + c->used, bytes, count);
    c->used += count;
    return true;
}

/* What the handshake has to say fits into an empty socket; for a client that reads nothing there is no second try. */
static bool send_handshake(client *c)
{
    char *bytes;
    size_t count = tr__tls_outgoing(c->tls, &bytes);
    uv_buf_t buffer = uv_buf_init(bytes, (unsigned)count);
    bool sent = count == 0 || uv_try_write((uv_stream_t *)&c->tcp, &buffer, 1) == (int)count;
    tr__tls_sent(c->tls);
    return sent;
}

static bool shake_hands(client *c)
{
    int done = tr__tls_handshake(c->tls);
    bool sent = send_handshake(c);
    if (done < 0) log_refusal(c, tr__tls_key_differs(c->tls) ? "its token is not this job's" : "a broken handshake");
    return sent && done >= 0;
}

static bool take_tls(client *c, const char *bytes, size_t count)
{
    if (!tr__tls_feed(c->tls, bytes, count)) return false;
    if (!tr__tls_ready(c->tls) && !shake_hands(c)) return false;
    while (tr__tls_ready(c->tls)) {
        if (!make_room(c, BUFFER)) return false;
        ssize_t got = tr__tls_read(c->tls, c->bytes + c->used, c->capacity - c->used);
        if (got <= 0) return got == 0;
        c->used += (size_t)got;
    }
    return true;
}

/* The first bytes tell whether both sides mean to speak TLS. */
static bool begin(client *c, const char *bytes)
{
    bool speaks_tls = bytes[0] == TR__TLS_RECORD, wanted = c->server->key != NULL;
    if (speaks_tls != wanted) {
        log_refusal(c, wanted ? "it has no token" : "it has a token, and this store has none");
        let_past(c);
        reply(c, TR__REPLY_REFUSED, NULL);
        return true;
    }
    if (wanted) c->tls = tr__tls_new(c->server->key, TR__TLS_SERVER);
    return !wanted || c->tls;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    *buffer = uv_buf_init(((client *)handle->data)->server->scratch, SCRATCH); /* each read is taken before the next */
}

static bool take(client *c, const char *bytes, size_t count)
{
    if (c->state == REFUSED) return true; /* it may say what it likes */
    if (c->state == GREETING) {
        bool first = c->greeting_used == 0;
        c->greeting_used += count;
        if (c->greeting_used > TR__TLS_HANDSHAKE_MAX) return false;
        if (first && !begin(c, bytes)) return false;
        if (c->state == REFUSED) return true;
    }
    return c->tls ? take_tls(c, bytes, count) : take_plain(c, bytes, count);
}

static void on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer)
{
    client *c = stream->data;
    if (bytes == 0) return;
    if (bytes < 0 || !take(c, buffer->base, (size_t)bytes))
        close_client(c);
    else
        work_on(c);
}

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

/* Raises the process's limit, as far as that goes. */
static void raise_limit(tr__server *s)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    rlim_t raised = 2 * limit.rlim_cur < limit.rlim_max ? 2 * limit.rlim_cur : limit.rlim_max;
    bool more = raised > limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &(struct rlimit){raised, limit.rlim_max}) == 0;
    if (more || s->full) return;
    s->full = true;
    tr__log(TR_LOG_WARN, "store: this process may have no more than %llu descriptors, and needs more; raise the limit "
                         "(ulimit -Hn), or further clients cannot connect", (unsigned long long)limit.rlim_cur);
}

/* Before the descriptors run out: a connection that finds none is lost, and its client must try again. */
static void keep_descriptors(tr__server *s, const client *c)
{
    uv_os_fd_t fd;
    struct rlimit limit;
    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) != 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if ((rlim_t)fd + SPARE_DESCRIPTORS >= limit.rlim_cur) raise_limit(s);
}

static client *new_client(tr__server *s)
{
    client *c = calloc(1, sizeof *c);
    if (!c) return NULL; /* the connection waits until the next one comes */
    c->server = s;
    c->open_handles = 2;
    uv_tcp_init(&s->loop, &c->tcp);
    uv_timer_init(&s->loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    put_into(&s->greeting, c);
    s->greeting_count++;
    return c;
}

static void on_connection(uv_stream_t *listener, int error)
{
    tr__server *s = listener->data;
    if (error == UV_EMFILE) {
        raise_limit(s);
        return; /* the connection waits, and is offered again */
    }
    if (error) {
        tr__log(TR_LOG_WARN, "store: cannot accept a connection: %s", uv_strerror(error));
        return;
    }
    if (s->greeting_count >= GREETING_MOST) close_client((client *)s->greeting.before);
    client *c = new_client(s);
    if (!c) return;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) != 0 || uv_tcp_nodelay(&c->tcp, 1) != 0 ||
        uv_timer_start(&c->timer, on_timeout, GREETING_MS, 0) != 0 ||
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) != 0)
        close_client(c);
    else
        keep_descriptors(s, c);
}

/* ---- Starting and stopping --------------------------------------------------------------------------------------- */

static void on_stop(uv_async_t *async)
{
    tr__server *s = async->data;
    close_ring(&s->greeting);
    close_ring(&s->guests);
    uv_close((uv_handle_t *)&s->listener, NULL);
    uv_close((uv_handle_t *)&s->stop, NULL);
}

static void *serve(void *arg)
{
    uv_run(&((tr__server *)arg)->loop, UV_RUN_DEFAULT); /* until on_stop has closed all */
    return NULL;
}

static tr_status check_address(tr__server *s, const tr__server_options *o, int *port)
{
    struct sockaddr_storage address;
    int length = sizeof address;
    int error = uv_tcp_getsockname(&s->listener, (struct sockaddr *)&address, &length);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", o->host, o->port, uv_strerror(error));
    if (!o->key && !o->insecure && !tr__is_loopback((struct sockaddr *)&address))
        return tr__fail(TR_AUTH,
                        "store: without a token it serves over loopback only, not on %s; set TRIREME_TOKEN, the "
                        "same for all ranks, or use 127.0.0.1",
                        o->host);
    *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                : ((struct sockaddr_in *)&address)->sin_port);
    return TR_OK;
}

static tr_status open_listener(tr__server *s, const tr__server_options *o, int *port)
{
    int fd = o->listen_fd;
    if (fd <= 0) TR__TRY(tr__bind(o->host, o->port, &fd));
    int error = uv_tcp_open(&s->listener, fd);
    if (error) {
        if (fd != o->listen_fd) close(fd);
        return tr__fail(TR_IO, "store: cannot serve on descriptor %d: %s", fd, uv_strerror(error));
    }
    TR__TRY(check_address(s, o, port));
    error = uv_listen((uv_stream_t *)&s->listener, BACKLOG, on_connection);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", o->host, *port, uv_strerror(error));
    return TR_OK;
}

static tr_status start_thread(tr__server *s)
{
    int error = tr__thread_start(&s->thread, serve, s); /* without SIGPIPE: a client may go while it is written to */
    return error ? tr__fail_errno(TR_NO_MEMORY, error, "store: cannot start its thread") : TR_OK;
}

static void free_server(tr__server *s)
{
    tr__map_clear(&s->map);
    uv_loop_close(&s->loop);
    tr__tls_key_unref(s->key);
    free(s);
}

tr_status tr__server_start(const tr__server_options *options, tr__server **server, int *port)
{
    tr__server *s = calloc(1, sizeof *s);
    if (!s) return tr__fail(TR_NO_MEMORY, "store: no memory to serve");
    int error = uv_loop_init(&s->loop);
    if (error) {
        free(s);
        return tr__fail(TR_IO, "store: cannot serve: %s", uv_strerror(error));
    }
    s->key = tr__tls_key_ref(options->key);
    s->greeting = (ring){&s->greeting, &s->greeting};
    s->guests = (ring){&s->guests, &s->guests};
    uv_tcp_init(&s->loop, &s->listener);
    uv_async_init(&s->loop, &s->stop, on_stop);
    s->listener.data = s->stop.data = s;
    tr_status status = open_listener(s, options, port);
    if (status == TR_OK) status = start_thread(s);
    if (status == TR_OK) {
        *server = s;
    } else {
        on_stop(&s->stop);
        serve(s);
        free_server(s);
    }
    return status;
}

void tr__server_stop(tr__server *s)
{
    uv_async_send(&s->stop);
    pthread_join(s->thread, NULL);
    free_server(s);
}
