#include "strangers.h"

#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Slow sends: in place of the C library's, for the library's own calls ------------------------------------------ */

_Thread_local unsigned sends_slow_us;

ssize_t send(int fd, const void *bytes, size_t count, int flags)
{
    if (sends_slow_us) usleep(sends_slow_us);
    return syscall(SYS_sendto, fd, bytes, count, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (sends_slow_us) usleep(sends_slow_us);
    return syscall(SYS_sendmsg, fd, message, flags);
}

/* ---- The crowd ----------------------------------------------------------------------------------------------------- */

static int come(const strangers *s, int number)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)(number % s->addresses))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    /* Where the kernel has no room for another one, it comes too late, and the next is as good. */
    struct timeval patience = {.tv_usec = 200000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (bind(fd, (struct sockaddr *)&from, sizeof from) == 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
        if (number % 3 == 0) (void)!send(fd, &s->first, 1, MSG_NOSIGNAL);
        return fd;
    }
    close(fd);
    return -1;
}

static void *crowd(void *arg)
{
    strangers *s = arg;
    int *fds = malloc((size_t)s->most * sizeof *fds);
    for (int i = 0; fds && i < s->most; i++) fds[i] = -1;
    for (int number = 0; fds && !atomic_load(&s->stop); number++) {
        int *place = &fds[number % s->most];
        if (*place >= 0) close(*place);
        *place = come(s, number);
        atomic_fetch_add(&s->came, 1);
        if (s->pause_us) usleep((unsigned)s->pause_us);
    }
    for (int i = 0; fds && i < s->most; i++)
        if (fds[i] >= 0) close(fds[i]);
    free(fds);
    return NULL;
}

bool strangers_start(strangers *s)
{
    return pthread_create(&s->thread, NULL, crowd, s) == 0;
}

void strangers_await(const strangers *s, int count)
{
    while (atomic_load(&s->came) < count) usleep(1000);
}

void strangers_stop(strangers *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
}
