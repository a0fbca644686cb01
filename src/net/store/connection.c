#include "net/store/connection.h"

#include "base/clock.h"
#include "base/object.h"
#include "base/resolve.h"
#include "net/address.h"
#include "net/link.h"
#include "net/store/store.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GREETING_MS = 10000 }; /* for the handshake and the hello of one try; who is slower is asked again */

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* All of it; an errno. */
static int send_pieces(tr__connection *c, struct iovec *pieces, int count, int64_t deadline)
{
    int error;
    do error = tr__wire_push(&c->wire, &pieces, &count);
    while (error == EAGAIN && !(error = tr__wire_await(c->wire.socket, POLLOUT, deadline)));
    return error;
}

static int receive_bytes(tr__connection *c, unsigned char *bytes, size_t count, int64_t deadline)
{
    while (count > 0) {
        ssize_t got = tr__wire_receive(&c->wire, &(struct iovec){bytes, count}, 1, false);
        if (got == 0) return ECONNRESET;
        if (got < 0 && !tr__wire_would_block()) return errno;
        int error = got < 0 ? tr__wire_await(c->wire.socket, POLLIN, deadline) : 0;
        if (error) return error;
        if (got < 0) continue;
        bytes += got;
        count -= (size_t)got;
    }
    return 0;
}

/* ---- A request and its reply ------------------------------------------------------------------------------------- */

int tr__connection_exchange(tr__connection *c, const tr__frame *request, int64_t deadline, tr__frame *frame,
    unsigned char **bytes)
{
    unsigned char head[TR__FRAME_HEAD], header[TR__FRAME_HEADER];
    struct iovec pieces[TR__FRAME_PIECES];
    enum { LIMIT = TR__FRAME_HEADER + 1 + TR__VALUE_MAX };
    *bytes = NULL;
    int error = send_pieces(c, pieces, tr__frame_pieces(request, head, pieces), deadline);
    if (!error) error = receive_bytes(c, header, sizeof header, deadline);
    if (error) return error;
    if (tr__frame_parse(header, sizeof header, LIMIT, frame) != 0)
        return EPROTO; /* no reply is as short as its header */
    size_t body = (size_t)tr__read_number(header, 4);
    *bytes = malloc(sizeof header + body + 1);
    if (!*bytes) return ENOMEM;
    memcpy(*bytes, header, sizeof header);
    error = receive_bytes(c, *bytes + sizeof header, body, deadline);
    if (!error && tr__frame_parse(*bytes, sizeof header + body, LIMIT, frame) <= 0) error = EPROTO;
    if (!error && frame->type != TR__FRAME_REPLY) error = EPROTO;
    if (!error) return 0;
    free(*bytes);
    *bytes = NULL;
    return error;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static int connect_to(const struct addrinfo *to, int64_t deadline, int *fd)
{
    *fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return errno;
    int error = 0;
    socklen_t size = sizeof error;
    tr__link_bound_retries(*fd);
    if (connect(*fd, to->ai_addr, to->ai_addrlen) != 0 && (error = errno) == EINPROGRESS) {
        error = tr__wire_await(*fd, POLLOUT, deadline);
        if (!error && getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (!error && setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) != 0) error = errno;
    if (!error) return 0;
    close(*fd);
    return error;
}

/* An errno. EKEYREJECTED: the tokens differ; EPROTO: no TLS is spoken there. */
static int shake_hands(tr__connection *c, int64_t deadline)
{
    int error = 0;
    for (int done; !error && (done = tr__wire_shake_hands(&c->wire)) <= 0;) {
        if (done < 0) return tr__tls_key_differs(c->wire.tls) ? EKEYREJECTED : errno;
        error = tr__wire_await(c->wire.socket, POLLIN, deadline);
    }
    return error;
}

static tr_status greet(const tr__destination *to, tr__connection *c, int64_t deadline)
{
    int64_t soon = tr__in_ms(GREETING_MS);
    bool last = deadline <= soon; /* there is no time for another try */
    if (!last) deadline = soon;
    tr__frame hello = {.type = TR__FRAME_HELLO}, answer = {.code = TR__REPLY_OK};
    unsigned char *bytes = NULL;
    int error = shake_hands(c, deadline);
    if (!error) error = tr__connection_exchange(c, &hello, deadline, &answer, &bytes);
    if (!error) snprintf(c->server, sizeof c->server, "%.*s", (int)answer.value_bytes, (const char *)answer.value);
    free(bytes);
    if (error == EKEYREJECTED)
        return tr__fail(TR_AUTH, "the %s refused this job's token; TRIREME_TOKEN must be the same for all ranks",
                        to->name);
    if (error == EPROTO)
        return tr__fail(TR_FORMAT, "%s: what answers there is no Trireme store%s", to->name,
                        to->key ? ", or one without a token" : "");
    if (error == ENOMEM) return tr__fail(TR_NO_MEMORY, "%s: no memory to connect", to->name);
    if (error)
        return tr__fail_errno(last && error == ETIMEDOUT ? TR_TIMEOUT : TR_IO, error, "%s: it took the connection and did not "
            "answer our hello: something else than a Trireme store listens on that port (choose another one), or a store with "
            "another idea of whether the job has a token (TRIREME_TOKEN), or one whose process is stopped", to->name);
    if (answer.code == TR__REPLY_OK) return TR_OK;
    return tr__fail(TR_AUTH, "the %s wants a token, and we have none; set TRIREME_TOKEN, the same for all ranks",
                    to->name);
}

static tr_status connect_any(const tr__destination *to, const struct addrinfo *found, int64_t deadline, tr__connection *c)
{
    int error = 0, latest = EADDRNOTAVAIL, socket = -1;
    for (const struct addrinfo *a = found; a && latest; a = a->ai_next) {
        bool allowed = to->key || to->insecure || tr__is_loopback(a->ai_addr);
        if (!allowed && error) continue;
        if (!allowed)
            return tr__fail(TR_AUTH,
                            "%s: without a token only loopback is spoken to; set TRIREME_TOKEN, the same for all ranks",
                            to->name);
        latest = connect_to(a, deadline, &socket);
        /* Of several reasons the first, or that nobody listens: localhost is ::1, too, where this host may have no IPv6. */
        if (!error || latest == ECONNREFUSED) error = latest;
    }
    if (!latest)
        return tr__wire_open(&c->wire, socket, to->key, TR__TLS_CLIENT) ? TR_OK
            : tr__fail(TR_NO_MEMORY, "%s: no memory to connect", to->name);
    c->refused = error == ECONNREFUSED;
    c->lost = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN || error == ENETDOWN;
    return tr__fail_errno(TR_IO, error, "%s: cannot connect", to->name);
}

tr_status tr__connection_open(const tr__destination *to, int64_t deadline, tr__connection *c)
{
    char service[8];
    snprintf(service, sizeof service, "%d", to->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    *c = (tr__connection){.wire.socket = -1};
    int error = tr__resolve(to->host, service, &hints, &found);
    if (error == EAI_AGAIN) return tr__fail(TR_IO, "%s: %s", to->name, gai_strerror(error));
    if (error) return tr__fail(TR_NOT_FOUND, "%s: %s", to->name, gai_strerror(error));
    tr_status status = connect_any(to, found, deadline, c);
    freeaddrinfo(found);
    TR__TRY(status);
    status = greet(to, c, deadline);
    if (status != TR_OK) tr__wire_close(&c->wire);
    c->lost = status == TR_IO;
    return status;
}
