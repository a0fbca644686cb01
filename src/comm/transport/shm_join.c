/*
 * The sockets between the ranks of a host. Each rank listens on an abstract Unix socket with a random name, which needs
 * no file and is gone with the process, and publishes the name in the store with a one-time cookie. A rank connects to
 * all ranks below it and accepts those above. Whoever connects must run as our user, which the kernel tells, and bring
 * our cookie; the answer brings theirs. With these two messages each passes the descriptor of its endpoint's
 * page, with the control block of the group. Groups within the group use the same sockets.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/log.h"
#include "comm/transport/shm.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 100 }; /* between two looks at whether those we wait for are alive */

/* ---- The listener ------------------------------------------------------------------------------------------------ */

/* An abstract name: a zero byte, then the text. */
static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length > sizeof address->sun_path - 1) length = sizeof address->sun_path - 1;
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

tr_status tr__shm_listen(tr__shm *t, tr__endpoint_record *record)
{
    struct sockaddr_un address;
    char random[33];
    TR__TRY(tr__random_text(t->listener.cookie, sizeof t->listener.cookie));
    TR__TRY(tr__random_text(random, sizeof random));
    memcpy(record->cookie, t->listener.cookie, sizeof record->cookie);
    memcpy(record->address, "trireme-", 8);
    memcpy(record->address + 8, random, sizeof random);
    t->listener.socket = open_socket();
    socklen_t length = address_of(record->address, &address);
    if (t->listener.socket < 0 || bind(t->listener.socket, (struct sockaddr *)&address, length) != 0 ||
        listen(t->listener.socket, t->world_size) != 0)
        return tr__fail_errno(TR_IO, errno, "group '%s': cannot listen for the other ranks", t->group);
    return TR_OK;
}

/* ---- Handshake --------------------------------------------------------------------------------------------------- */

typedef struct joining {
    tr__shm *t;
    tr__rendezvous *meeting;
    tr__endpoint_record *records; /* of all ranks of the group */
    int missing;         /* ranks that have not shaken hands */
    int *incoming;       /* sockets that came in and have not said who they are */
    int incoming_count;
    struct pollfd *fds;  /* listener, peers, incoming */
    int64_t looked;      /* when we last looked whether those that are missing are alive */
} joining;

static tr__endpoint_record *record_of(const joining *j, int place)
{
    return &j->records[j->t->peers[place].rank];
}

/* False when nobody takes it. */
static bool send_hello(joining *j, int rank, int socket)
{
    tr__shm *t = j->t;
    tr__segment page;
    errno = EFAULT;
    if (!tr__segment_find(t->endpoint->page, 1, &page)) return false;
    tr__shm_message hello = {.magic = TR__SHM_MAGIC, .type = TR__SHM_HELLO, .rank = t->rank, .id = page.id,
        .bytes = page.bytes};
    memcpy(hello.cookie, record_of(j, rank)->cookie, sizeof hello.cookie);
    memcpy(hello.text, record_of(j, t->rank)->address, sizeof record_of(j, t->rank)->address);
    return tr__shm_send(socket, &hello, page.fd) >= 0;
}

static bool same_user(int socket, long *pid)
{
    struct ucred from;
    socklen_t size = sizeof from;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &from, &size) != 0) return false;
    *pid = (long)from.pid;
    return from.uid == geteuid();
}

/* Is this a hello with our cookie, from one of our user's processes? */
static bool is_welcome(const joining *j, int socket, ssize_t got, const tr__shm_message *m, long *pid)
{
    if (!same_user(socket, pid) || got != (ssize_t)sizeof *m) return false;
    return m->magic == TR__SHM_MAGIC && m->type == TR__SHM_HELLO &&
           CRYPTO_memcmp(m->cookie, j->t->listener.cookie, sizeof m->cookie) == 0;
}

/* A rank has closed the connection, or freed its page. */
static tr_status hung_up(joining *j, int rank)
{
    TR__TRY(tr__rendezvous_await_reason(j->meeting, j->records, j->t->peers[rank].rank));
    return tr__fail(TR_PEER, "group '%s': rank %d (pid %ld) gave up joining", j->t->group, j->t->peers[rank].rank,
        record_of(j, rank)->pid);
}

/* A rank has said hello: maps its page. fd goes along. */
static tr_status greet(joining *j, int rank, int socket, long pid, const tr__shm_message *hello, int fd)
{
    tr__shm *t = j->t;
    tr__shm_peer *peer = &t->peers[rank];
    tr__endpoint_peer *link = peer->link;
    link->socket = socket;
    link->visible = peer->visible = pid != 0; /* 0: from a process namespace that we cannot see into */
    link->pid = peer->pid = pid ? pid : record_of(j, rank)->pid;
    link->in_process = pid == (long)getpid();
    TR__TRY(tr__endpoint_mapped(t->endpoint, rank, hello, fd));
    if (link->mapping_count == 0) return hung_up(j, rank);
    const tr__shm_mapping *mapping = &link->mappings[0];
    tr__endpoint_page *page = (tr__endpoint_page *)mapping->memory;
    tr__shm_control *control = tr__endpoint_first(t->endpoint, page);
    bool fits = mapping->bytes >= t->endpoint->page_bytes + tr__shm_control_bytes(t->world_size) &&
                page->magic == TR__SHM_MAGIC && page->rank == rank && page->world_size == t->world_size;
    if (fits && page->version != TR__SHM_VERSION)
        return tr__fail(TR_UNSUPPORTED, "group '%s': rank %d runs another version of Trireme", t->group, peer->rank);
    if (!fits || control->magic != TR__SHM_MAGIC) {
        /* One that gives up frees its page, whose memory may hold something else by now. */
        TR__TRY(tr__rendezvous_await_reason(j->meeting, j->records, peer->rank));
        return tr__fail(TR_FORMAT, "group '%s': rank %d shows no page of ours", t->group, peer->rank);
    }
    link->page = page;
    peer->control = control;
    j->missing--;
    return TR_OK;
}

/* ---- Going out --------------------------------------------------------------------------------------------------- */

static tr_status check_alive(const joining *j, int rank)
{
    TR__TRY(tr__rendezvous_check(j->meeting, j->records, j->t->peers[rank].rank));
    if (tr__now_ns() < j->meeting->deadline) return TR_OK;
    j->meeting->late = j->t->peers[rank].rank;
    return tr__fail(TR_TIMEOUT, "group '%s': rank %d (pid %ld) did not come to the meeting within %g s", j->t->group,
                    j->t->peers[rank].rank, record_of(j, rank)->pid, j->meeting->member->timeout_ms / 1000.0);
}

/* Says hello, or why that cannot be. */
static tr_status greet_first(joining *j, int rank, int socket)
{
    if (send_hello(j, rank, socket)) return TR_OK;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return hung_up(j, rank);
    return tr__fail_errno(TR_IO, errno, "group '%s': cannot greet rank %d", j->t->group, j->t->peers[rank].rank);
}

/* A refused connection: the record is of an earlier try to join, and a new one will follow. */
static tr_status call_rank(joining *j, int rank)
{
    for (;;) {
        struct sockaddr_un address;
        socklen_t length = address_of(record_of(j, rank)->address, &address);
        int socket = open_socket();
        if (socket < 0) return tr__fail_errno(TR_IO, errno, "group '%s': no socket to rank %d", j->t->group,
            j->t->peers[rank].rank);
        if (connect(socket, (struct sockaddr *)&address, length) == 0) {
            j->t->peers[rank].link->socket = socket;
            return greet_first(j, rank, socket);
        }
        int error = errno;
        close(socket);
        if (error != ECONNREFUSED && error != EAGAIN && error != EINTR)
            return tr__fail_errno(TR_IO, error, "group '%s': cannot reach rank %d", j->t->group,
                j->t->peers[rank].rank);
        TR__TRY(check_alive(j, rank));
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        TR__TRY(tr__rendezvous_read(j->meeting, j->t->peers[rank].rank, 1, j->records));
    }
}

/* The answer of a rank that we have called. */
static tr_status hear_answer(joining *j, int rank)
{
    int socket = j->t->peers[rank].link->socket, fd;
    tr__shm_message hello;
    long pid = 0;
    ssize_t got = tr__shm_receive(socket, &hello, &fd);
    if (got < 0 && (errno == EAGAIN || errno == ECONNRESET)) return TR_OK;
    if (is_welcome(j, socket, got, &hello, &pid) && hello.rank == rank) return greet(j, rank, socket, pid, &hello, fd);
    if (fd >= 0) close(fd);
    if (got <= 0) return hung_up(j, rank);
    return tr__fail(TR_FORMAT, "group '%s': rank %d (pid %ld) answers with what is no hello of its own", j->t->group,
        j->t->peers[rank].rank, record_of(j, rank)->pid);
}

/* ---- Letting in -------------------------------------------------------------------------------------------------- */

/* Other users of this machine can see the listener's name, and could connect. */
static tr_status let_in(joining *j)
{
    while (j->incoming_count < j->t->world_size) {
        long pid;
        int socket = accept4(j->t->listener.socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            return tr__fail_errno(TR_IO, errno, "group '%s': rank %d cannot accept a connection of another rank", j->t->group,
                j->t->peers[j->t->rank].rank);
        if (socket < 0) return TR_OK;
        if (same_user(socket, &pid))
            j->incoming[j->incoming_count++] = socket;
        else
            close(socket);
    }
    return TR_OK;
}

/* One that came in speaks, or goes: either way it is one of these no longer. */
static tr_status hear_incoming(joining *j, int index)
{
    tr__shm *t = j->t;
    int socket = j->incoming[index], fd;
    tr__shm_message hello;
    long pid = 0;
    ssize_t got = tr__shm_receive(socket, &hello, &fd);
    if (got < 0 && errno == EAGAIN) return TR_OK;
    j->incoming[index] = j->incoming[--j->incoming_count];
    bool welcome = is_welcome(j, socket, got, &hello, &pid) && hello.rank > t->rank && hello.rank < t->world_size &&
                   t->peers[hello.rank].link->socket < 0;
    if (!welcome) {
        tr__log(TR_LOG_WARN, "group '%s': rank %d refused a connection (pid %ld)", t->group,
            t->peers[t->rank].rank, pid);
        if (fd >= 0) close(fd);
        close(socket);
        return TR_OK;
    }
    TR__TRY(greet(j, hello.rank, socket, pid, &hello, fd));
    /* One with another address has published a new record since we read the old one. */
    if (strcmp(record_of(j, hello.rank)->address, hello.text) != 0)
        TR__TRY(tr__rendezvous_read(j->meeting, t->peers[hello.rank].rank, 1, j->records));
    return greet_first(j, hello.rank, socket);
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

static tr_status check_missing(joining *j)
{
    tr__shm *t = j->t;
    int first = -1;
    for (int rank = 0; rank < t->world_size; rank++) {
        if (t->peers[rank].control) continue;
        if (first < 0) tr__rendezvous_waits_for(j->meeting, j->records, t->peers[first = rank].rank);
        TR__TRY(check_alive(j, rank));
    }
    return tr__rendezvous_check_peers(j->meeting);
}

static tr_status hear_all(joining *j)
{
    tr__shm *t = j->t;
    int world = t->world_size, incoming = j->incoming_count;
    bool room = incoming < world;
    j->fds[0] = (struct pollfd){.fd = room ? t->listener.socket : -1, .events = POLLIN};
    for (int rank = 0; rank < world; rank++) {
        bool waits = t->peers[rank].link->socket >= 0 && !t->peers[rank].control;
        j->fds[1 + rank] = (struct pollfd){.fd = waits ? t->peers[rank].link->socket : -1, .events = POLLIN};
    }
    for (int i = 0; i < incoming; i++) j->fds[1 + world + i] = (struct pollfd){.fd = j->incoming[i], .events = POLLIN};
    int ready = poll(j->fds, (nfds_t)(1 + world + incoming), LOOK_MS);
    for (int rank = 0; rank < world && ready > 0; rank++)
        if (j->fds[1 + rank].revents) TR__TRY(hear_answer(j, rank));
    for (int i = incoming - 1; i >= 0 && ready > 0; i--) /* backwards: the last takes the place of one that goes */
        if (j->fds[1 + world + i].revents) TR__TRY(hear_incoming(j, i));
    if (ready > 0) TR__TRY(let_in(j));
    int64_t now = tr__now_ns(); /* where connections never pause, those that are missing are looked for, too */
    if (ready > 0 && now < j->meeting->deadline && now - j->looked < LOOK_MS * (int64_t)1000000) return TR_OK;
    j->looked = now;
    return check_missing(j);
}

static tr_status meet_all(joining *j)
{
    for (int rank = 0; rank < j->t->rank; rank++) TR__TRY(call_rank(j, rank));
    while (j->missing > 0) TR__TRY(hear_all(j));
    return TR_OK;
}

tr_status tr__shm_connect(tr__shm *t, tr__rendezvous *meeting, tr__endpoint_record *records)
{
    size_t world = (size_t)t->world_size;
    TR__FREED int *incoming = tr__zeroed(world, sizeof *incoming);
    TR__FREED struct pollfd *fds = tr__zeroed(1 + 2 * world, sizeof *fds);
    joining j = {.t = t, .meeting = meeting, .records = records, .missing = t->world_size - 1, .incoming = incoming, .fds = fds};
    tr_status status = incoming && fds ? meet_all(&j) : tr__fail(TR_NO_MEMORY, "no memory to join %zu ranks", world);
    for (int i = 0; i < j.incoming_count; i++) close(j.incoming[i]);
    close(t->listener.socket);
    t->listener.socket = -1;
    return status;
}
