#include "comm/store_server.h"

#include "base/log.h"
#include "base/object.h"
#include "comm/store.h"
#include "comm/store_frame.h"
#include "comm/store_map.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

enum {
    BACKLOG = 4096,
    HELLO_MS = 10000,         /* to say hello in */
    HELLO_BYTES = 1024,       /* the longest frame of a client that has not */
    BUFFER = 4096,            /* read at once, at least */
    KEPT_BUFFER = 64 << 10,   /* larger ones are freed when they are empty */
};

typedef enum client_state {
    GREETING, /* has not said hello */
    IDLE,     /* may ask */
    WAITING,  /* for a key */
    REPLYING, /* its answer is on its way */
    REFUSED,  /* the same, and then it goes */
    CLOSING,
} client_state;

/* One frame is handled at a time, so a client costs at most a frame and a value, however slow it reads or writes. */
typedef struct client {
    uv_tcp_t tcp;
    uv_timer_t timer; /* of the hello, then of waits */
    uv_write_t write;
    int open_handles;
    tr__server *server;
    struct client *next, **at; /* among the server's clients */
    client_state state;
    unsigned char *bytes; /* received and not handled */
    size_t used, capacity;
    tr__entry *entry; /* WAITING: what for */
    struct client *next_waiter, **waiter_at;
    bool wants_value;
    tr__value *sending;
    unsigned char head[TR__FRAME_HEAD];
} client;

struct tr__server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_async_t stop;
    pthread_t thread;
    tr__map map;
    client *clients;
    char token[TR__TOKEN_MAX + 1];
};

bool tr__token_equal(const char *token, const void *given, size_t given_bytes)
{
    unsigned char a[TR__TOKEN_MAX] = {0}, b[TR__TOKEN_MAX] = {0};
    size_t length = strlen(token);
    if (length > sizeof a || given_bytes > sizeof b) return false;
    memcpy(a, token, length);
    if (given_bytes) memcpy(b, given, given_bytes);
    return (CRYPTO_memcmp(a, b, sizeof a) == 0) & (length == given_bytes);
}

/* ---- Clients come and go ----------------------------------------------------------------------------------------- */

static void stop_waiting(client *c)
{
    if (!c->entry) return;
    *c->waiter_at = c->next_waiter;
    if (c->next_waiter) c->next_waiter->waiter_at = c->waiter_at;
    tr__map_prune(&c->server->map, c->entry);
    c->entry = NULL;
}

static void on_closed(uv_handle_t *handle)
{
    client *c = handle->data;
    if (--c->open_handles > 0) return;
    tr__value_unref(c->sending);
    free(c->bytes);
    free(c);
}

static void close_client(client *c)
{
    if (c->state == CLOSING) return;
    c->state = CLOSING;
    stop_waiting(c);
    *c->at = c->next;
    if (c->next) c->next->at = c->at;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

static void work_on(client *c);

static void on_written(uv_write_t *write, int error)
{
    client *c = write->data;
    if (c->state == CLOSING) return;
    tr__value_unref(c->sending);
    c->sending = NULL;
    if (error || c->state == REFUSED) {
        close_client(c);
        return;
    }
    c->state = IDLE;
    work_on(c);
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
    struct iovec pieces[TR__FRAME_PIECES];
    uv_buf_t buffers[TR__FRAME_PIECES];
    int count = tr__frame_pieces(&frame, c->head, pieces);
    for (int i = 0; i < count; i++) buffers[i] = uv_buf_init(pieces[i].iov_base, (unsigned)pieces[i].iov_len);
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, buffers, (unsigned)count, on_written) != 0) close_client(c);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void on_timeout(uv_timer_t *timer)
{
    client *c = timer->data;
    if (c->state != WAITING) {
        close_client(c); /* no hello */
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
        uv_timer_stop(&c->timer);
        reply(c, tr__token_equal(c->server->token, f->value, f->value_bytes) ? TR__REPLY_OK : TR__REPLY_REFUSED, NULL);
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
        ssize_t bytes = tr__frame_parse(c->bytes, c->used, c->state == GREETING ? HELLO_BYTES : TR__FRAME_MAX, &frame);
        if (bytes == 0) return;
        if (bytes < 0)
            close_client(c);
        else
            handle(c, &frame);
        if (c->state != CLOSING) consume(c, (size_t)bytes);
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Grows with what has really come, not with what a header promises. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    client *c = handle->data;
    size_t limit = c->state == GREETING ? HELLO_BYTES : TR__FRAME_MAX;
    *buffer = uv_buf_init(NULL, 0);
    if (c->used >= limit) return; /* which ends the client: it talks while it should listen */
    if (c->capacity - c->used < BUFFER) {
        size_t capacity = c->capacity ? 2 * c->capacity : BUFFER;
        unsigned char *grown = realloc(c->bytes, capacity);
        if (!grown) return;
        c->bytes = grown;
        c->capacity = capacity;
    }
    size_t room = c->capacity - c->used;
    *buffer = uv_buf_init((char *)c->bytes + c->used, (unsigned)(room < limit - c->used ? room : limit - c->used));
}

static void on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer)
{
    (void)buffer;
    client *c = stream->data;
    if (bytes < 0) {
        close_client(c);
        return;
    }
    c->used += (size_t)bytes;
    work_on(c);
}

static void on_connection(uv_stream_t *listener, int error)
{
    tr__server *s = listener->data;
    if (error) {
        tr__log(TR_LOG_WARN, "store: cannot accept a connection: %s", uv_strerror(error));
        return;
    }
    client *c = calloc(1, sizeof *c);
    if (!c) return; /* the connection waits until the next one comes */
    c->server = s;
    c->open_handles = 2;
    uv_tcp_init(&s->loop, &c->tcp);
    uv_timer_init(&s->loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    c->next = s->clients;
    c->at = &s->clients;
    if (c->next) c->next->at = &c->next;
    s->clients = c;
    if (uv_accept(listener, (uv_stream_t *)&c->tcp) != 0 || uv_tcp_nodelay(&c->tcp, 1) != 0 ||
        uv_timer_start(&c->timer, on_timeout, HELLO_MS, 0) != 0 ||
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read) != 0)
        close_client(c);
}

/* ---- Starting and stopping --------------------------------------------------------------------------------------- */

static void on_stop(uv_async_t *async)
{
    tr__server *s = async->data;
    while (s->clients) close_client(s->clients);
    uv_close((uv_handle_t *)&s->listener, NULL);
    uv_close((uv_handle_t *)&s->stop, NULL);
}

static void *serve(void *arg)
{
    uv_run(&((tr__server *)arg)->loop, UV_RUN_DEFAULT); /* until on_stop has closed all */
    return NULL;
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static tr_status bind_to(tr__server *s, const char *host, int port)
{
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *found;
    int error = getaddrinfo(host, service, &hints, &found);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", host, port, gai_strerror(error));
    error = uv_tcp_bind(&s->listener, found->ai_addr, 0);
    freeaddrinfo(found);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", host, port, uv_strerror(error));
    return TR_OK;
}

static tr_status check_address(tr__server *s, const char *host, const char *token, int *port)
{
    struct sockaddr_storage address;
    int length = sizeof address;
    int error = uv_tcp_getsockname(&s->listener, (struct sockaddr *)&address, &length);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", host, *port, uv_strerror(error));
    if (!token && !is_loopback((struct sockaddr *)&address))
        return tr__fail(TR_AUTH,
                        "store: without a token it serves over loopback only, not on %s; set TRIREME_TOKEN, the "
                        "same for all ranks, or use 127.0.0.1",
                        host);
    *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                : ((struct sockaddr_in *)&address)->sin_port);
    return TR_OK;
}

static tr_status open_listener(tr__server *s, const char *host, int port, int listen_fd, const char *token, int *bound)
{
    *bound = port;
    int error = listen_fd > 0 ? uv_tcp_open(&s->listener, listen_fd) : 0;
    if (error) return tr__fail(TR_IO, "store: cannot serve on descriptor %d: %s", listen_fd, uv_strerror(error));
    if (listen_fd <= 0) TR__TRY(bind_to(s, host, port));
    TR__TRY(check_address(s, host, token, bound));
    error = uv_listen((uv_stream_t *)&s->listener, BACKLOG, on_connection);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", host, *bound, uv_strerror(error));
    return TR_OK;
}

static tr_status start_thread(tr__server *s)
{
    sigset_t all, old; /* SIGPIPE above all: a client may go while it is written to */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error ? tr__fail_errno(TR_NO_MEMORY, error, "store: cannot start its thread") : TR_OK;
}

static void free_server(tr__server *s)
{
    tr__map_clear(&s->map);
    uv_loop_close(&s->loop);
    OPENSSL_cleanse(s->token, sizeof s->token);
    free(s);
}

tr_status tr__server_start(const char *host, int port, int listen_fd, const char *token, tr__server **server,
    int *bound_port)
{
    if (token && strlen(token) > TR__TOKEN_MAX)
        return tr__fail(TR_INVALID, "store: a token has at most %d bytes", TR__TOKEN_MAX);
    tr__server *s = calloc(1, sizeof *s);
    if (!s) return tr__fail(TR_NO_MEMORY, "store: no memory to serve");
    int error = uv_loop_init(&s->loop);
    if (error) {
        free(s);
        return tr__fail(TR_IO, "store: cannot serve: %s", uv_strerror(error));
    }
    strcpy(s->token, token ? token : "");
    uv_tcp_init(&s->loop, &s->listener);
    uv_async_init(&s->loop, &s->stop, on_stop);
    s->listener.data = s->stop.data = s;
    tr_status status = open_listener(s, host, port, listen_fd, token && token[0] ? token : NULL, bound_port);
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
