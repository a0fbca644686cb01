/* One connection of the TCP store's server: its handshake, what it receives and what it is sent. */
#include "net/store/client.h"

#include "base/log.h"
#include "net/link.h"
#include "net/store/store.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

enum {
    GREETING_MS = 10000,    /* for handshake and hello */
    GREETING_BYTES = 1024,  /* the longest frame of a client that has not said hello */
    BUFFER = 4096,          /* room for what comes, at least */
    KEPT_BUFFER = 64 << 10, /* larger ones are freed when they are empty */
    PART = 64 << 10,        /* encrypted at once: what a slow reader under TLS costs */
    LOGGED_REFUSALS = 10,   /* so that a flood of refused clients does not fill the log */
};

/* ---- Clients come and go ----------------------------------------------------------------------------------------- */

static void put_into(tr__ring *members, tr__client *c)
{
    c->link = (tr__ring){members, members->after};
    members->after->before = &c->link;
    members->after = &c->link;
}

/* Has not said hello. */
static bool is_new(const tr__client *c)
{
    return c->state == TR__CLIENT_STRANGER || c->state == TR__CLIENT_GREETING;
}

static void take_out(tr__client *c)
{
    tr__server *s = c->server;
    c->link.before->after = c->link.after;
    c->link.after->before = c->link.before;
    if (c->state == TR__CLIENT_STRANGER) s->origins.counts[c->origin]--;
    if (is_new(c)) s->new_count--;
}

/* Its first message was made with the job's key. */
static void greet(tr__client *c)
{
    take_out(c);
    c->state = TR__CLIENT_GREETING;
    put_into(&c->server->greeting, c);
    c->server->new_count++;
}

void tr__client_admit(tr__client *c)
{
    uv_timer_stop(&c->timer);
    take_out(c);
    put_into(&c->server->admitted, c);
}

void tr__client_give_way(tr__server *s)
{
    tr__ring *first = s->strangers.before;
    for (tr__ring *at = first->before; first != &s->strangers && at != &s->strangers; at = at->before)
        if (s->origins.counts[((tr__client *)at)->origin] > s->origins.counts[((tr__client *)first)->origin]) first = at;
    if (first == &s->strangers) first = s->greeting.before;
    if (first != &s->greeting) tr__client_close((tr__client *)first);
}

static void on_closed(uv_handle_t *handle)
{
    tr__client *c = handle->data;
    if (--c->open_handles > 0) return;
    tr__map_value_unref(c->sending);
    tr__tls_free(c->tls);
    free(c->bytes);
    free(c);
}

void tr__client_close(tr__client *c)
{
    if (c->state == TR__CLIENT_CLOSING) return;
    take_out(c);
    c->state = TR__CLIENT_CLOSING;
    tr__request_forget(c);
    uv_close((uv_handle_t *)&c->tcp, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

void tr__clients_close(tr__ring *members)
{
    while (members->after != members) tr__client_close((tr__client *)members->after);
}

/* One line for the person who mixed up two tokens. */
static void log_refusal(tr__client *c, const char *why)
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

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void work_on(tr__client *c);
static void send_more(tr__client *c);

static void on_written(uv_write_t *write, int error)
{
    tr__client *c = write->data;
    if (c->state == TR__CLIENT_CLOSING) return;
    if (!error && c->rest_count > 0) {
        send_more(c);
        return;
    }
    if (c->tls) tr__tls_sent(c->tls);
    tr__map_value_unref(c->sending);
    c->sending = NULL;
    if (error || c->state == TR__CLIENT_REFUSED) {
        tr__client_close(c);
        return;
    }
    c->state = TR__CLIENT_IDLE;
    work_on(c);
}

/* Encrypts the next part of the reply. */
static bool encrypt_part(tr__client *c, uv_buf_t *buffer)
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

static void send_more(tr__client *c)
{
    uv_buf_t buffers[TR__FRAME_PIECES];
    unsigned count = 1;
    if (!c->tls) {
        count = (unsigned)c->rest_count;
        for (unsigned i = 0; i < count; i++)
            buffers[i] = uv_buf_init(c->rest[i].iov_base, (unsigned)c->rest[i].iov_len);
        c->rest_count = 0;
    } else if (!encrypt_part(c, buffers)) {
        tr__client_close(c);
        return;
    }
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->tcp, buffers, count, on_written) != 0) tr__client_close(c);
}

void tr__client_reply(tr__client *c, tr__frame_code code, tr__map_value *value)
{
    tr__frame frame = {.type = TR__FRAME_REPLY, .code = code};
    if (value) {
        frame.value = value->data;
        frame.value_bytes = value->bytes;
        value->refs++;
    }
    c->sending = value;
    c->state = code == TR__REPLY_REFUSED ? TR__CLIENT_REFUSED : TR__CLIENT_REPLYING;
    c->rest_count = tr__frame_pieces(&frame, c->head, c->rest);
    send_more(c);
}

/* ---- Handling ---------------------------------------------------------------------------------------------------- */

static void handle(tr__client *c, const tr__frame *f)
{
    bool hello = f->type == TR__FRAME_HELLO;
    if (hello != is_new(c)) {
        tr__client_close(c);
    } else if (hello) {
        tr__client_admit(c);
        tr__client_reply(c, TR__REPLY_OK, c->server->name);
    } else {
        tr__request_handle(c, f);
    }
}

/* Takes a frame out of what has come. */
static void consume(tr__client *c, size_t bytes)
{
    c->used -= bytes;
    memmove(c->bytes, c->bytes + bytes, c->used);
    if (c->used > 0 || c->capacity <= KEPT_BUFFER) return;
    free(c->bytes);
    c->bytes = NULL;
    c->capacity = 0;
}

static void work_on(tr__client *c)
{
    while (is_new(c) || c->state == TR__CLIENT_IDLE) {
        tr__frame frame;
        size_t limit = is_new(c) ? GREETING_BYTES : TR__FRAME_MAX;
        ssize_t bytes = tr__frame_parse(c->bytes, c->used, limit, &frame);
        if (bytes == 0) return;
        if (bytes < 0)
            tr__client_close(c);
        else
            handle(c, &frame);
        if (c->state != TR__CLIENT_CLOSING) consume(c, (size_t)bytes);
    }
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Room for what has really come, not for what a header promises. */
static bool make_room(tr__client *c, size_t bytes)
{
    size_t limit = is_new(c) ? GREETING_BYTES : TR__FRAME_MAX, capacity = c->capacity;
    if (c->used >= limit) return false; /* it talks while it should listen */
    while (capacity - c->used < bytes) capacity = capacity ? 2 * capacity : BUFFER;
    if (capacity == c->capacity) return true;
    unsigned char *grown = realloc(c->bytes, capacity);
    if (!grown) return false;
    c->bytes = grown;
    c->capacity = capacity;
    return true;
}

/* What the handshake has to say fits into an empty socket; for a client that reads nothing there is no second try. */
static bool send_handshake(tr__client *c)
{
    char *bytes;
    size_t count = tr__tls_outgoing(c->tls, &bytes);
    uv_buf_t buffer = uv_buf_init(bytes, (unsigned)count);
    bool sent = count == 0 || uv_try_write((uv_stream_t *)&c->tcp, &buffer, 1) == (int)count;
    tr__tls_sent(c->tls);
    return sent;
}

static bool shake_hands(tr__client *c)
{
    int done = tr__tls_handshake(c->tls);
    bool sent = send_handshake(c);
    if (done >= 0 && c->state == TR__CLIENT_STRANGER && tr__tls_has_proof(c->tls)) greet(c);
    if (done < 0) log_refusal(c, tr__tls_key_differs(c->tls) ? "its token is not this job's" : "a broken handshake");
    return sent && done >= 0;
}

static bool take_tls(tr__client *c, const char *bytes, size_t count)
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
static bool begin(tr__client *c, const char *bytes)
{
    bool speaks_tls = bytes[0] == TR__TLS_RECORD, wanted = c->server->key != NULL;
    if (speaks_tls != wanted) {
        log_refusal(c, wanted ? "it has no token" : "it has a token, and this store has none");
        tr__client_admit(c);
        tr__client_reply(c, TR__REPLY_REFUSED, NULL);
        return true;
    }
    if (wanted) c->tls = tr__tls_new(c->server->key, TR__TLS_SERVER);
    return !wanted || c->tls;
}

/* Each read is taken before the next. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    (void)suggested;
    *buffer = uv_buf_init(((tr__client *)handle->data)->server->scratch, sizeof((tr__server *)0)->scratch);
}

/* False: the client must go. */
static bool take(tr__client *c, const char *bytes, size_t count)
{
    if (c->state == TR__CLIENT_REFUSED) return true; /* it may say what it likes */
    if (is_new(c)) {
        bool first = c->greeting_used == 0;
        c->greeting_used += count;
        if (c->greeting_used > TR__TLS_HANDSHAKE_MAX) return false;
        if (first && !begin(c, bytes)) return false;
        if (c->state == TR__CLIENT_REFUSED) return true;
    }
    if (c->tls) return take_tls(c, bytes, count);
    if (!make_room(c, count)) return false;
    memcpy(c->bytes + c->used, bytes, count);
    c->used += count;
    return true;
}

static void on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer)
{
    tr__client *c = stream->data;
    if (bytes == 0) return;
    if (bytes < 0 || !take(c, buffer->base, (size_t)bytes))
        tr__client_close(c);
    else
        work_on(c);
}

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

static void on_late_greeting(uv_timer_t *timer)
{
    tr__client_close(timer->data);
}

tr__client *tr__client_accept(tr__server *s)
{
    tr__client *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    uv_stream_t *stream = (uv_stream_t *)&c->tcp;
    uv_os_fd_t fd = -1;
    c->server = s;
    c->open_handles = 2;
    uv_tcp_init(&s->loop, &c->tcp);
    uv_timer_init(&s->loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    bool accepted = uv_accept((uv_stream_t *)&s->listener, stream) == 0 && uv_fileno((uv_handle_t *)stream, &fd) == 0;
    c->origin = tr__origin_of(&s->origins, fd);
    put_into(&s->strangers, c);
    s->new_count++;
    s->origins.counts[c->origin]++;
    tr__link_bound_retries(fd);
    if (!accepted || uv_tcp_nodelay(&c->tcp, 1) != 0 || uv_timer_start(&c->timer, on_late_greeting, GREETING_MS, 0) != 0 ||
        uv_read_start(stream, on_alloc, on_read) != 0)
        tr__client_close(c);
    return c;
}
