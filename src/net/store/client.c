/* One connection of the TCP store's server: its handshake, what it receives and what it is sent. */
#include "net/store/client.h"

#include "base/log.h"
#include "net/link.h"
#include "net/store/store.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    GREETING_MS = 10000,    /* for handshake and hello */
    GREETING_BYTES = 1024,  /* the longest frame of a client that has not said hello */
    BUFFER = 4096,          /* room for what comes, at least */
    KEPT_BUFFER = 64 << 10, /* larger ones are freed when they are empty */
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
    free(c->bytes);
    free(c);
}

void tr__client_close(tr__client *c)
{
    if (c->state == TR__CLIENT_CLOSING) return;
    take_out(c);
    c->state = TR__CLIENT_CLOSING;
    tr__request_forget(c);
    uv_close((uv_handle_t *)&c->poll, on_closed);
    tr__wire_close(&c->wire);
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
    socklen_t length = sizeof from;
    char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    if (getpeername(c->wire.socket, (struct sockaddr *)&from, &length) == 0)
        getnameinfo((struct sockaddr *)&from, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    tr__log(TR_LOG_WARN, "store: turned %s port %s away: %s%s", host, port, why,
            s->refusals == LOGGED_REFUSALS ? "; more of these will not be reported" : "");
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void on_ready(uv_poll_t *poll, int error, int events);

/* Hears of what comes, and of room for what goes out. */
static bool watch(tr__client *c, bool waits)
{
    c->waits = waits;
    return uv_poll_start(&c->poll, UV_READABLE | (waits ? UV_WRITABLE : 0), on_ready) == 0;
}

/* Sends the rest of the reply, as far as the socket takes it. */
static void send_more(tr__client *c)
{
    int error = tr__wire_push(&c->wire, &c->rest, &c->rest_count);
    if (error == EAGAIN && (c->waits || watch(c, true))) return;
    tr__map_value_unref(c->sending);
    c->sending = NULL;
    c->state = TR__CLIENT_IDLE;
    if (error) tr__client_close(c);
}

void tr__client_reply(tr__client *c, tr__frame_code code, tr__map_value *value)
{
    tr__frame frame = {.type = TR__FRAME_REPLY, .code = code};
    bool waited = c->state == TR__CLIENT_WAITING;
    if (value) {
        frame.value = value->data;
        frame.value_bytes = value->bytes;
        value->refs++;
    }
    c->sending = value;
    c->state = TR__CLIENT_REPLYING;
    c->rest = c->pieces;
    c->rest_count = tr__frame_pieces(&frame, c->head, c->pieces);
    send_more(c);
    if (c->state == TR__CLIENT_IDLE && waited && c->used > 0) watch(c, true); /* what it has said meanwhile is handled then */
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

/* The length of the frame that has come whole and may be handled now; 0: there is none; -1: it is no frame. */
static ssize_t find_frame(const tr__client *c, tr__frame *frame)
{
    if (!is_new(c) && c->state != TR__CLIENT_IDLE) return 0;
    return tr__frame_parse(c->bytes, c->used, is_new(c) ? GREETING_BYTES : TR__FRAME_MAX, frame);
}

/* One at a time: the other clients have their turn in between. */
static void work_on(tr__client *c)
{
    tr__frame frame;
    ssize_t bytes = find_frame(c, &frame);
    if (bytes < 0) tr__client_close(c);
    if (bytes <= 0) return;
    handle(c, &frame);
    if (c->state != TR__CLIENT_CLOSING) consume(c, (size_t)bytes);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Room for what has really come, not for what a header promises. */
static bool make_room(tr__client *c)
{
    size_t limit = is_new(c) ? GREETING_BYTES : TR__FRAME_MAX, capacity = c->capacity;
    if (c->used > limit) return false; /* it talks while it should listen */
    while (capacity - c->used < BUFFER) capacity = capacity ? 2 * capacity : BUFFER;
    if (capacity == c->capacity) return true;
    unsigned char *grown = realloc(c->bytes, capacity);
    if (!grown) return false;
    c->bytes = grown;
    c->capacity = capacity;
    return true;
}

/* Only one of the two sides means to speak TLS. What has come is taken first: with unread bytes, the connection would be reset when
 * it is closed, and the refusal lost. */
static void refuse(tr__client *c)
{
    char said[TR__TLS_HANDSHAKE_MAX];
    (void)!recv(c->wire.socket, said, sizeof said, MSG_DONTWAIT);
    log_refusal(c, c->server->key ? "it has no token" : "it has a token, and this store has none");
    tr__client_admit(c);
    tr__client_reply(c, TR__REPLY_REFUSED, NULL);
}

/* As tr__wire_shake_hands(). */
static int shake_hands(tr__client *c)
{
    int done = tr__wire_shake_hands(&c->wire);
    const tr__tls *tls = c->wire.tls;
    if (done >= 0 && c->state == TR__CLIENT_STRANGER && tls && tr__tls_has_proof(tls)) greet(c);
    if (done < 0 && errno == EPROTO)
        log_refusal(c, tr__tls_key_differs(tls) ? "its token is not this job's" : "a broken handshake");
    return done;
}

/* Takes what has come. False: the client must go. */
static bool hear(tr__client *c)
{
    if (!c->begun) {
        int begun = tr__wire_begin(&c->wire, c->server->key);
        if (begun < 0 && errno == EPROTO) refuse(c);
        if (begun <= 0) return begun == 0;
        c->begun = true;
    }
    int done = shake_hands(c);
    if (done <= 0) return done == 0;
    do {
        if (!make_room(c)) return false;
        ssize_t got = tr__wire_receive(&c->wire, &(struct iovec){c->bytes + c->used, c->capacity - c->used}, 1, false);
        if (got <= 0) return got < 0 && tr__wire_would_block();
        c->used += (size_t)got;
    } while (c->wire.tls); /* what lies there, and that it is damaged, poll() does not tell */
    return true;
}

static void on_ready(uv_poll_t *poll, int error, int events)
{
    (void)events;
    tr__client *c = poll->data;
    if (c->state == TR__CLIENT_REPLYING) send_more(c);
    if (c->state != TR__CLIENT_CLOSING && !hear(c)) tr__client_close(c);
    work_on(c);
    /* A socket with room is ready at once: that is how the next frame that lies here gets its turn, after the other clients'. */
    bool waits = c->state == TR__CLIENT_REPLYING || find_frame(c, &(tr__frame){0}) != 0;
    if (error || (c->state != TR__CLIENT_CLOSING && c->waits != waits && !watch(c, waits))) tr__client_close(c);
}

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

static void on_late_greeting(uv_timer_t *timer)
{
    tr__client_close(timer->data);
}

void tr__client_begin(tr__client *c, tr__server *s, int socket)
{
    if (uv_poll_init(&s->loop, &c->poll, socket) != 0) {
        free(c);
        close(socket);
        return;
    }
    uv_timer_init(&s->loop, &c->timer);
    c->server = s;
    c->open_handles = 2;
    c->wire.socket = socket;
    c->poll.data = c->timer.data = c;
    c->origin = tr__origin_of(&s->origins, socket);
    put_into(&s->strangers, c);
    s->new_count++;
    s->origins.counts[c->origin]++;
    tr__link_bound_retries(socket);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (uv_timer_start(&c->timer, on_late_greeting, GREETING_MS, 0) != 0 || !watch(c, false)) tr__client_close(c);
}
