#include "net/store/server.h"

#include "base/list.h"
#include "base/log.h"
#include "base/object.h"
#include "base/resolve.h"
#include "base/thread.h"
#include "net/address.h"
#include "net/cookie.h"
#include "net/store/client.h"
#include "net/store/connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BACKLOG = 4096,
    NEW_MOST = 4096,         /* clients that have not said hello; when there are more, one gives way */
    NEW_LEAST = 64,          /* the same when descriptors run out */
    AGAIN_MS = 100,          /* until a client for which there is no memory or descriptor is let in */
    SPARE_DESCRIPTORS = 256, /* left when the limit is raised: the program takes some as well */
};

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

/* Raises the process's limit, as far as that goes; then it lets fewer in who have not said hello. False: nothing helps. */
static bool raise_limit(tr__server *s)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
    rlim_t raised = 2 * limit.rlim_cur < limit.rlim_max ? 2 * limit.rlim_cur : limit.rlim_max;
    if (raised > limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &(struct rlimit){raised, limit.rlim_max}) == 0) return true;
    if (s->new_count > NEW_LEAST) {
        s->new_most = s->new_count - 1;
        return true;
    }
    if (!s->full)
        tr__log(TR_LOG_WARN, "store: this process may have no more than %llu descriptors, and needs more; raise the limit "
                             "(ulimit -Hn), or further clients cannot connect", (unsigned long long)limit.rlim_cur);
    s->full = true;
    return false;
}

/* Before the descriptors run out. */
static void keep_descriptors(tr__server *s, int socket)
{
    struct rlimit limit;
    bool near = getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)socket + SPARE_DESCRIPTORS >= limit.rlim_cur;
    if (near) (void)raise_limit(s);
}

static void on_again(uv_timer_t *timer);

/* One at a time: those who have come before are heard in between. */
static void on_connection(uv_poll_t *listener, int error, int events)
{
    (void)events;
    tr__server *s = listener->data;
    if (s->new_count >= s->new_most) tr__client_give_way(s);
    tr__client *c = calloc(1, sizeof *c);
    int socket = c ? accept4(s->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    error = socket >= 0 ? 0 : c ? errno : ENOMEM;
    if (!error) {
        keep_descriptors(s, socket);
        tr__client_begin(c, s, socket);
        return;
    }
    free(c);
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED || (error == EMFILE && raise_limit(s))) return;
    if (error != EMFILE && error != ENOMEM) tr__log(TR_LOG_WARN, "store: cannot accept a connection: %s", uv_strerror(-error));
    uv_poll_stop(listener); /* connections that wait would keep this thread awake */
    uv_timer_start(&s->again, on_again, AGAIN_MS, 0);
}

static void on_again(uv_timer_t *timer)
{
    uv_poll_start(&((tr__server *)timer->data)->listener, UV_READABLE, on_connection);
}

/* ---- Starting and stopping --------------------------------------------------------------------------------------- */

static void on_stop(uv_async_t *async)
{
    tr__server *s = async->data;
    tr__clients_close(&s->strangers);
    tr__clients_close(&s->greeting);
    tr__clients_close(&s->admitted);
    if (s->socket >= 0) {
        uv_close((uv_handle_t *)&s->listener, NULL);
        close(s->socket);
    }
    uv_close((uv_handle_t *)&s->stop, NULL);
    uv_close((uv_handle_t *)&s->again, NULL);
}

static void *serve(void *arg)
{
    uv_run(&((tr__server *)arg)->loop, UV_RUN_DEFAULT); /* until on_stop has closed all */
    return NULL;
}

/* A socket on the first address of the host that can be bound: a name may have addresses that this machine has not. */
static tr_status bind_socket(const char *host, int port, int *fd)
{
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *found;
    int error = tr__resolve(host, service, &hints, &found);
    if (error) return tr__fail(TR_IO, "store: cannot serve on %s:%d: %s", host, port, gai_strerror(error));
    error = EADDRNOTAVAIL;
    for (const struct addrinfo *a = found; a && error && error != EADDRINUSE; a = a->ai_next) {
        *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        bool bound = *fd >= 0 && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0 &&
                     bind(*fd, a->ai_addr, a->ai_addrlen) == 0;
        error = bound ? 0 : errno;
        if (error && *fd >= 0) close(*fd);
    }
    freeaddrinfo(found);
    if (error == EADDRINUSE)
        return tr__fail_errno(TR_IO, error, "store: cannot serve on %s:%d, which another process or store of this one "
                              "has; the job needs a port of its own (MASTER_PORT)", host, port);
    if (error == EADDRNOTAVAIL)
        return tr__fail_errno(TR_IO, error, "store: cannot serve on %s:%d, which is no address of this host; rank 0 runs "
                              "where the others are to meet (MASTER_ADDR)", host, port);
    return error ? tr__fail_errno(TR_IO, error, "store: cannot serve on %s:%d", host, port) : TR_OK;
}

static tr_status check_address(int socket, const tr__server_options *o, int *port)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getsockname(socket, (struct sockaddr *)&address, &length) != 0)
        return tr__fail_errno(TR_IO, errno, "store: cannot serve on %s:%d", o->host, o->port);
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
    if (fd <= 0) TR__TRY(bind_socket(o->host, o->port, &fd));
    int error = uv_poll_init(&s->loop, &s->listener, fd);
    if (error) {
        if (fd != o->listen_fd) close(fd);
        return tr__fail(TR_IO, "store: cannot serve on descriptor %d: %s", fd, uv_strerror(error));
    }
    s->socket = fd;
    s->listener.data = s;
    TR__TRY(check_address(fd, o, port));
    if (listen(fd, BACKLOG) == 0 && uv_poll_start(&s->listener, UV_READABLE, on_connection) == 0) return TR_OK;
    return tr__fail_errno(TR_IO, errno, "store: cannot serve on %s:%d", o->host, *port);
}

static tr_status choose_name(tr__server *s, const tr__server_options *o)
{
    char name[TR__SERVER_NAME];
    TR__TRY(tr__random_text(name, sizeof name));
    s->name = tr__map_value_new(name, TR__SERVER_NAME - 1);
    s->host = o->shared ? strdup(o->host) : NULL;
    return s->name && (s->host || !o->shared) ? TR_OK : tr__fail(TR_NO_MEMORY, "store: no memory to serve");
}

static void free_server(tr__server *s)
{
    tr__map_value_unref(s->name);
    free(s->host);
    tr__request_changed(s);
    tr__map_clear(&s->map);
    uv_loop_close(&s->loop);
    tr__tls_key_unref(s->key);
    free(s);
}

static tr_status start(const tr__server_options *options, tr__server **server, int *port)
{
    tr__server *s = calloc(1, sizeof *s);
    if (!s) return tr__fail(TR_NO_MEMORY, "store: no memory to serve");
    int error = uv_loop_init(&s->loop);
    if (error) {
        free(s);
        return tr__fail(TR_IO, "store: cannot serve: %s", uv_strerror(error));
    }
    s->key = tr__tls_key_ref(options->key);
    s->map.most = options->max_bytes;
    s->new_most = NEW_MOST;
    s->strangers = (tr__ring){&s->strangers, &s->strangers};
    s->greeting = (tr__ring){&s->greeting, &s->greeting};
    s->admitted = (tr__ring){&s->admitted, &s->admitted};
    s->socket = -1;
    uv_async_init(&s->loop, &s->stop, on_stop);
    uv_timer_init(&s->loop, &s->again);
    s->stop.data = s->again.data = s;
    tr_status status = choose_name(s, options);
    if (status == TR_OK) status = open_listener(s, options, port);
    if (status == TR_OK) error = tr__thread_start(&s->thread, serve, s); /* without SIGPIPE: a client may go meanwhile */
    if (error) status = tr__fail_errno(TR_NO_MEMORY, error, "store: cannot start its thread");
    if (status == TR_OK) {
        *server = s;
    } else {
        on_stop(&s->stop);
        serve(s);
        free_server(s);
    }
    return status;
}

static void stop(tr__server *s)
{
    uv_async_send(&s->stop);
    pthread_join(s->thread, NULL);
    free_server(s);
}

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

/* A port belongs to the process, so groups of one process whose ranks meet at the same address meet in one server. */
static struct {
    pthread_mutex_t lock;
    tr__server *first;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

tr_status tr__server_start(const tr__server_options *o, tr__server **server, int *port)
{
    if (!o->shared) return start(o, server, port);
    TR__LOCKED(&shared.lock);
    tr__server *s = shared.first;
    while (s && (s->port != o->port || strcmp(s->host, o->host) != 0 || !tr__tls_key_same(s->key, o->key))) s = s->next;
    if (!s) {
        TR__TRY(start(o, &s, port));
        s->port = *port;
        s->next = shared.first;
        shared.first = s;
    }
    s->users++;
    *server = s;
    *port = s->port;
    return TR_OK;
}

void tr__server_stop(tr__server *s)
{
    if (!s->host) {
        stop(s);
        return;
    }
    TR__LOCKED(&shared.lock); /* until it is gone: who asks for the port next finds it free */
    if (--s->users > 0) return;
    TR__UNLINK(shared.first, s);
    stop(s);
}
