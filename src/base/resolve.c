#include "base/resolve.h"

#include <netdb.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

/* "localhost", "Localhost.", "any.localhost" */
static bool is_localhost(const char *host)
{
    static const char name[] = "localhost";
    const size_t length = sizeof name - 1;
    size_t n = strlen(host);
    if (n && host[n - 1] == '.') n--;
    return n >= length && strncasecmp(host + n - length, name, length) == 0 &&
           (n == length || host[n - length - 1] == '.');
}

int tr__resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    if (!is_localhost(host)) return getaddrinfo(host, service, hints, found);

    /* No host at all means the loopback addresses, unless AI_PASSIVE makes it mean every address. */
    struct addrinfo loopback = *hints;
    loopback.ai_flags &= ~AI_PASSIVE;
    int error = getaddrinfo(NULL, service, &loopback, found);
    if (error) return error;

    struct addrinfo *first = *found, *second = first->ai_next;
    if (first->ai_family == AF_INET6 && second && !second->ai_next) {
        second->ai_next = first;
        first->ai_next = NULL;
        *found = second;
    }
    return 0;
}
