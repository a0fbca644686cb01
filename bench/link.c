/*
 * A network between network namespaces with a rate and a delay, for machines whose kernel has no netem:
 *
 *     link MBIT_PER_S DELAY_US NAMESPACE...
 *
 * gives each namespace an interface eth0 and carries their packets until it is killed: the first is to have an address
 * that ends in .1, the second .2, and so on. Each host has one way out and one way in of that rate, and a packet takes
 * the delay on its way. Needs root. Prints "ready".
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 16, MTU = 9000, QUEUE = 4096 }; /* QUEUE: packets on their way to one host; more are lost */

typedef struct packet {
    int64_t due;
    int bytes;
    char data[MTU];
} packet;

typedef struct host {
    int tun;
    int64_t out_free, in_free; /* when its way out, and in, is free again */
    packet *queue;             /* [QUEUE], to this host, in the order of their times */
    unsigned first, count;
} host;

static host hosts[HOSTS];
static int host_count;
static double ns_per_byte;
static int64_t delay_ns;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static int fail(const char *what)
{
    fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
    return 1;
}

/* Makes eth0 in a namespace. This process stays in the last one, which does not matter: it opens no sockets. */
static int make_interface(const char *space)
{
    char path[128];
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", space);
    snprintf(r.ifr_name, sizeof r.ifr_name, "eth0");
    int name = open(path, O_RDONLY | O_CLOEXEC);
    if (name < 0 || setns(name, CLONE_NEWNET) != 0) return -1;
    close(name);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return tun >= 0 && ioctl(tun, TUNSETIFF, &r) == 0 ? tun : -1;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Takes what a host sends and puts it on its way. */
static void take(host *from)
{
    static char data[MTU];
    for (ssize_t got; (got = read(from->tun, data, sizeof data)) > 0;) {
        unsigned to = (unsigned char)data[19] - 1u; /* the last byte of the address that it is for */
        if ((unsigned char)data[0] >> 4 != 4 || got < 20 || to >= (unsigned)host_count) continue;
        host *h = &hosts[to];
        int64_t takes = (int64_t)((double)got * ns_per_byte);
        from->out_free = later(from->out_free, now_ns()) + takes;
        if (h->count == QUEUE) continue;
        /* Its first byte comes when it has left and crossed; the way in may still be busy with another's. */
        h->in_free = later(h->in_free, from->out_free - takes + delay_ns) + takes;
        packet *p = &h->queue[(h->first + h->count++) % QUEUE];
        p->due = h->in_free;
        p->bytes = (int)got;
        memcpy(p->data, data, (size_t)got);
    }
}

static void deliver(host *h)
{
    for (; h->count && h->queue[h->first].due <= now_ns(); h->count--, h->first = (h->first + 1) % QUEUE) {
        const packet *p = &h->queue[h->first];
        if (write(h->tun, p->data, (size_t)p->bytes) < 0 && errno != EAGAIN) return;
    }
}

static void carry(void)
{
    struct pollfd fds[HOSTS];
    for (;;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < host_count; i++) {
            deliver(&hosts[i]);
            fds[i] = (struct pollfd){.fd = hosts[i].tun, .events = POLLIN};
            if (hosts[i].count && hosts[i].queue[hosts[i].first].due < next) next = hosts[i].queue[hosts[i].first].due;
        }
        int64_t wait = later(next - now_ns(), 0);
        struct timespec t = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
        if (ppoll(fds, (nfds_t)host_count, next == INT64_MAX ? NULL : &t, NULL) < 0 && errno != EINTR) return;
        for (int i = 0; i < host_count; i++) take(&hosts[i]);
    }
}

int main(int argc, char **argv)
{
    double mbit = argc > 3 ? strtod(argv[1], NULL) : 0;
    delay_ns = argc > 3 ? strtoll(argv[2], NULL, 10) * 1000 : -1;
    host_count = argc - 3;
    if (!(mbit > 0) || delay_ns < 0 || host_count > HOSTS) {
        fprintf(stderr, "usage: link MBIT_PER_S DELAY_US NAMESPACE... (at most %d)\n", HOSTS);
        return 2;
    }
    ns_per_byte = 8e3 / mbit;
    for (int i = 0; i < host_count; i++) {
        hosts[i].queue = calloc(QUEUE, sizeof *hosts[i].queue);
        hosts[i].tun = hosts[i].queue ? make_interface(argv[3 + i]) : -1;
        if (hosts[i].tun < 0) return fail(argv[3 + i]);
    }
    printf("ready\n");
    fflush(stdout);
    carry();
    return fail("poll");
}
