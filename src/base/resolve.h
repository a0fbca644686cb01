/*
 * Names of hosts to addresses.
 */
#ifndef TR_BASE_RESOLVE_H
#define TR_BASE_RESOLVE_H

struct addrinfo;

/* getaddrinfo(), whose errors it returns; but "localhost" and the names that end in ".localhost" are the loopback addresses
 * by definition (RFC 6761, section 6.3), also where neither /etc/hosts nor a name server knows them. 127.0.0.1 comes first,
 * so that who says "localhost" and who says "127.0.0.1" mean the same. */
int tr__resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found);

#endif
