/* Where an endpoint listens, and addresses as text: "10.0.0.1:41234", "[fe80::1]:41234". */
#ifndef TR_NET_ADDRESS_H
#define TR_NET_ADDRESS_H

#include <trireme/base.h>

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

enum { TR__ADDRESS_TEXT = 79 };

typedef union tr__address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage room;
} tr__address;

static inline socklen_t tr__address_length(const tr__address *a)
{
    return a->any.sa_family == AF_INET6 ? sizeof a->in6 : sizeof a->in;
}

bool tr__is_loopback(const struct sockaddr *address);
/* Which of this host's addresses a group's ranks are to be reached at: the one `wanted`, an IP address or an interface's name; if
 * it is NULL or empty, the one towards a host (NULL: not known), else loopback. Not anywhere: loopback only. */
tr_status tr__address_choose(const char *group, const char *wanted, bool anywhere, const char *towards, tr__address *a);
tr_status tr__address_write(const tr__address *a, char text[TR__ADDRESS_TEXT]);
bool tr__address_parse(const char *text, tr__address *a);

#endif
