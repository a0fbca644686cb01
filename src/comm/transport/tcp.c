/* Making and ending a group's TCP transport, and the failures that break it. */
#include "comm/transport/tcp.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/thread.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp_flow.h"
#include "net/link.h"
#include "net/store/store.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

/* Keeps this thread's latest failure if it is the first, lets the peers know, and wakes who waits. */
static void keep_failure(tr__tcp *t, bool own)
{
    if (!tr__failure_keep(&t->failure, own)) return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    char name[TR__TCP_NAME], text[TR__TCP_TEXT];
    tr_status status = tr__failure_for_peers(&t->failure, tr__tcp_name(&t->peers[t->rank], name), t->group);
    snprintf(text, sizeof text, "%s", tr_error_message());
    tr__tcp_frame frame = tr__tcp_frame_of(NULL, TR__TCP_BROKEN, strlen(text));
    frame.status = status;
    tr__tcp_tell_all(t, &frame, text);
    ssize_t written = write(t->kick, &(uint64_t){1}, sizeof(uint64_t)); /* wakes the thread that runs a call */
    (void)written;
    tr__tcp_wake(t);
}

void tr__tcp_wake(tr__tcp *t)
{
    ssize_t written = write(t->wake, &(uint64_t){1}, sizeof(uint64_t)); /* fails only when it is set already */
    (void)written;
}

void tr__tcp_break_too(tr__tcp *t, bool own)
{
    keep_failure(t, own);
}

static tr_status break_both(tr__tcp *t, bool own)
{
    keep_failure(t, own);
    /* Also when another thread was first, and may not have come so far: who is told of a failure can leave, and his
     * neighbours must not take that for the reason. */
    tr__failure_tell(&t->failure);
    pthread_mutex_lock(&t->link);
    if (t->shm) tr__shm_break_too(t->shm, t->failure.own);
    pthread_mutex_unlock(&t->link);
    return tr__failure_tell(&t->failure);
}

tr_status tr__tcp_break(tr__tcp *t)
{
    return break_both(t, false);
}

tr_status tr__tcp_give_up(tr__tcp *t)
{
    return break_both(t, true);
}

void tr__tcp_link(tr__tcp *t, tr__shm *shm)
{
    pthread_mutex_lock(&t->link);
    t->shm = shm;
    pthread_mutex_unlock(&t->link);
}

char *tr__tcp_name(const tr__tcp_peer *peer, char text[TR__TCP_NAME])
{
    snprintf(text, TR__TCP_NAME, "rank %d (pid %ld on host %s)", peer->rank, peer->pid, peer->host);
    return text;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static tr_status make_tables(tr__tcp *t)
{
    size_t world = (size_t)t->world_size;
    t->peers = calloc(world, sizeof *t->peers);
    t->slots = calloc(TR__TCP_WINDOW, sizeof *t->slots);
    t->polled = calloc(2 * TR__TCP_WINDOW + 1, sizeof *t->polled);
    t->stage = malloc(TR__TCP_STAGE);
    t->folded = calloc(world, sizeof *t->folded);
    if (!t->peers || !t->slots || !t->polled || !t->stage || !t->folded)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", t->group, t->world_size);
    for (int rank = 0; rank < t->world_size; rank++) {
        t->peers[rank].rank = rank;
        t->peers[rank].claims[0].on = t->peers[rank].claims[1].on = -1;
        for (int lane = 0; lane < TR__TCP_LANES; lane++) t->peers[rank].wires[lane].socket = -1;
    }
    return TR_OK;
}

static tr_status make_watch(tr__tcp *t)
{
    t->watch = epoll_create1(EPOLL_CLOEXEC);
    t->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    /* Our own number stands for the kick. Once the group is broken it stays set, and wakes the monitor no more. */
    struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.fd = t->rank};
    if (t->watch < 0 || t->kick < 0 || t->wake < 0 || epoll_ctl(t->watch, EPOLL_CTL_ADD, t->kick, &e) != 0)
        return tr__fail_errno(TR_IO, errno, "group '%s': no epoll", t->group);
    return TR_OK;
}

/* The key that the store has: who met there has proved it. */
static tr_status take_key(tr__tcp *t, const tr__member *member)
{
    if (!member->encrypt) return TR_OK;
    t->key = tr__tls_key_ref(member->store->key);
    return t->key ? TR_OK : tr__fail(TR_AUTH, "group '%s': connections are encrypted with the job's token, and there is "
        "none; set TRIREME_TOKEN, the same for all ranks, and let them meet at an address or in a file, or go without "
        ".encrypt and TRIREME_ENCRYPT", t->group);
}

static tr_status make_parts(tr__tcp *t, const tr__member *member, tr__card *card)
{
    TR__TRY(take_key(t, member));
    TR__TRY(tr__choice_read(&t->choices, member->algorithms, NULL));
    card->table = tr__choice_digest(&t->choices);
    TR__TRY(make_tables(t));
    TR__TRY(make_watch(t));
    return tr__tcp_listen(t, member, card);
}

tr_status tr__tcp_new(const tr__member *member, tr__card *card, tr__tcp **transport)
{
    tr__tcp *t = calloc(1, sizeof *t);
    if (!t) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", member->group);
    snprintf(t->group, sizeof t->group, "%s", member->group);
    t->rank = member->rank;
    t->world_size = member->world_size;
    t->report_ms = member->report_ms;
    t->recorder = member->recorder;
    t->checked = tr__check_asks("wire");
    t->watch = t->kick = t->wake = t->door.socket = t->dead = -1;
    pthread_mutex_init(&t->lock, NULL);
    tr__condition_init(&t->changed);
    pthread_mutex_init(&t->link, NULL);
    pthread_mutex_init(&t->hearing, NULL);
    tr__failure_init(&t->failure);
    tr_status status = make_parts(t, member, card);
    if (status == TR_OK)
        *transport = t;
    else
        tr__tcp_close(t);
    return status;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

/* Ranks in other network namespaces of this machine count: they use the same cores. */
static bool crowded(const tr__tcp *t, const tr__card *cards)
{
    int here = 0;
    const char *mine = cards[t->rank].machine;
    size_t kernel = strcspn(mine, "/") + 1;
    for (int rank = 0; rank < t->world_size; rank++) here += strncmp(cards[rank].machine, mine, kernel) == 0;
    return tr__cores() < here;
}

static tr_status watch_peers(tr__tcp *t, const tr__card *cards)
{
    for (int rank = 0; rank < t->world_size; rank++) {
        tr__tcp_peer *peer = &t->peers[rank];
        peer->pid = cards[rank].pid;
        peer->visible = tr__card_visible(&cards[rank], &cards[t->rank]);
        memcpy(peer->host, cards[rank].host, sizeof peer->host);
        if (rank == t->rank) continue;
        struct epoll_event e = {.events = EPOLLIN, .data.fd = rank};
        if (epoll_ctl(t->watch, EPOLL_CTL_ADD, peer->wires[TR__TCP_CONTROL_LANE].socket, &e) != 0)
            return tr__fail_errno(TR_IO, errno, "group '%s': no epoll", t->group);
    }
    return TR_OK;
}

tr_status tr__tcp_meet(tr__tcp *t, tr__rendezvous *meeting, tr__card *cards)
{
    TR__TRY(tr__tcp_connect(t, meeting, cards));
    tr__tcp_choose_pace(t);
    TR__TRY(watch_peers(t, cards));
    TR__TRY(tr__tcp_monitor_start(t));
    t->crowded = crowded(t, cards);
    TR__TRY(tr__rendezvous_use(meeting));
    /* A rank has joined when all have: nobody's first collective meets a rank that failed to join. */
    tr_collective all = {.kind = TR_BARRIER, .timeout_ms = tr__rendezvous_rest_ms(meeting), .file = "tr_join"};
    tr_status status = tr__tcp_run(t, &all, 0);
    pthread_mutex_lock(&t->lock);
    t->has_last = false;
    for (int rank = 0; rank < t->world_size; rank++) t->peers[rank].called = false;
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

static int socket_at(const tr__tcp *t, int i)
{
    return t->peers[i / TR__TCP_LANES].wires[i % TR__TCP_LANES].socket;
}

/* Have all bytes arrived that were sent, in the peer's kernel at least? */
static bool has_arrived(int socket)
{
    int left = 0;
    return ioctl(socket, SIOCOUTQ, &left) != 0 || left == 0;
}

/* Reads until the peer stops sending; or until `moment`, if by then it has what we sent; or until `end`, or its host is gone. */
static void read_out(int socket, int64_t moment, int64_t end)
{
    enum { LOOK_MS = 10 };
    struct pollfd p = {.fd = socket, .events = POLLIN};
    char rest[4096];
    for (;;) {
        int64_t now = tr__now_ns(), left = (moment - now) / 1000000;
        if (left <= 0 && (now >= end || has_arrived(socket) || tr__link_lost(&socket, 1))) return;
        if (poll(&p, 1, left > 0 ? (int)left : LOOK_MS) > 0 && recv(socket, rest, sizeof rest, MSG_DONTWAIT) <= 0) return;
    }
}

/* A connection is reset when it is closed with unread bytes, or when some come after that, and what we sent last is lost
 * with it if it has not arrived, as where packets are lost or a link is down for a while: the peer would take us for dead.
 * So we stop sending, and read what a peer still says. */
static void part(tr__tcp *t)
{
    enum { PART_MS = 200 };
    bool sound = !tr__failure_there(&t->failure);
    tr__tcp_frame goodbye = tr__tcp_frame_of(t->has_last ? &t->last : NULL, TR__TCP_GOODBYE, 0);
    if (sound) tr__tcp_tell_all(t, &goodbye, NULL);
    int64_t now = tr__now_ns(), moment = now + PART_MS * (int64_t)1000000;
    int64_t end = sound ? now + TR__LINK_LOST_LATE_MS * (int64_t)1000000 : moment;
    for (int i = 0; i < TR__TCP_LANES * t->world_size; i++)
        if (socket_at(t, i) >= 0) shutdown(socket_at(t, i), SHUT_WR);
    for (int i = 0; i < TR__TCP_LANES * t->world_size; i++)
        if (socket_at(t, i) >= 0) read_out(socket_at(t, i), moment, end);
}

void tr__tcp_close(tr__tcp *t)
{
    tr__tcp_monitor_stop(t);
    if (t->peers) part(t);
    for (int rank = 0; t->peers && rank < t->world_size; rank++)
        for (int lane = 0; lane < TR__TCP_LANES; lane++) tr__wire_close(&t->peers[rank].wires[lane]);
    tr__tls_key_unref(t->key);
    if (t->door.socket >= 0) close(t->door.socket);
    if (t->watch >= 0) close(t->watch);
    if (t->kick >= 0) close(t->kick);
    if (t->wake >= 0) close(t->wake);
    free(t->peers);
    free(t->slots);
    free(t->polled);
    free(t->stage);
    free(t->scratch);
    free(t->folded);
    tr__failure_clear(&t->failure);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->link);
    pthread_mutex_destroy(&t->hearing);
    free(t);
}
