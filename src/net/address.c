#include "net/address.h"

#include "base/object.h"
#include "base/resolve.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool tr__is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool read_address(const char *text, const char *port, tr__address *a)
{
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    if (getaddrinfo(text, port, &hints, &found) != 0) return false;
    memcpy(&a->room, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return true;
}

/* The first address of a network interface; IPv4 before IPv6. */
static bool interface_address(const char *name, tr__address *a)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (int family = 0; family < 2 && !found; family++) {
        for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
            if (!i->ifa_addr || strcmp(i->ifa_name, name) != 0) continue;
            if (i->ifa_addr->sa_family != (family ? AF_INET6 : AF_INET)) continue;
            memcpy(&a->room, i->ifa_addr, family ? sizeof a->in6 : sizeof a->in);
            found = true;
        }
    }
    freeifaddrs(all);
    return found;
}

/* Our end of the way to a host: a datagram socket that is connected sends nothing, but has an address. */
static bool address_towards(const char *host, tr__address *a)
{
    struct addrinfo *found, hints = {.ai_socktype = SOCK_DGRAM};
    if (tr__resolve(host, "9", &hints, &found) != 0) return false;
    bool known = false;
    for (struct addrinfo *i = found; i && !known; i = i->ai_next) {
        int s = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        socklen_t length = sizeof a->room;
        known = s >= 0 && connect(s, i->ai_addr, i->ai_addrlen) == 0 && getsockname(s, &a->any, &length) == 0;
        if (s >= 0) close(s);
    }
    freeaddrinfo(found);
    a->in.sin_port = 0; /* the datagram socket's; in the same place for both families */
    return known;
}

tr_status tr__address_choose(const char *group, const char *wanted, bool anywhere, const char *towards, tr__address *a)
{
    memset(a, 0, sizeof *a);
    if (wanted && *wanted) {
        if (!read_address(wanted, NULL, a) && !interface_address(wanted, a))
            return tr__fail(TR_INVALID, "group '%s': '%s' is neither an IP address nor a network interface of this "
                "host with one", group, wanted);
        if (!anywhere && !tr__is_loopback(&a->any))
            return tr__fail(TR_AUTH, "group '%s': without a token ranks listen on loopback only, not on '%s'; set "
                "TRIREME_TOKEN, the same for all ranks", group, wanted);
        return TR_OK;
    }
    bool known = anywhere && towards && towards[0] && address_towards(towards, a);
    return known || read_address("127.0.0.1", NULL, a) ? TR_OK : tr__fail(TR_INTERNAL, "no loopback");
}

tr_status tr__address_write(const tr__address *a, char text[TR__ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN + 20], port[8];
    int error = getnameinfo(&a->any, tr__address_length(a), host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    if (error) return tr__fail(TR_IO, "an address of our own cannot be written: %s", gai_strerror(error));
    snprintf(text, TR__ADDRESS_TEXT, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return TR_OK;
}

bool tr__address_parse(const char *text, tr__address *a)
{
    char host[80];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (length == 0 || length >= sizeof host) return false;
    memcpy(host, text, length);
    host[length] = 0;
    char *begin = host;
    if (host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = 0;
        begin++;
    }
    return read_address(begin, colon + 1, a);
}
