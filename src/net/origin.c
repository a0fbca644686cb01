#include "net/origin.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

int tr__origin_of(tr__origins *origins, int socket)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } from = {0};
    socklen_t length = sizeof from;
    uint64_t host = 0;
    if (!origins->key && getrandom(&origins->key, sizeof origins->key, 0) < 0) origins->key = 1;
    if (getpeername(socket, &from.any, &length) != 0) return 0;
    if (from.any.sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&from.in6.sin6_addr))
        memcpy(&host, &from.in6.sin6_addr, sizeof host);
    else if (from.any.sa_family == AF_INET6)
        memcpy(&host, (char *)&from.in6.sin6_addr + 12, 4);
    else
        host = from.in.sin_addr.s_addr;
    uint64_t mixed = (host ^ origins->key) * 0x9e3779b97f4a7c15u; /* splitmix64 */
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    return (int)((mixed ^ (mixed >> 31)) % TR__ORIGINS);
}
