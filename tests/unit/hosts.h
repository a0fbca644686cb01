/*
 * Pretended hosts, for tests: ranks of this machine that take each other for ranks of other hosts. A rank joins through a
 * store of its own that stands before the real one, and changes on records what tells hosts apart.
 */
#ifndef TR_TESTS_HOSTS_H
#define TR_TESTS_HOSTS_H

#include <trireme/comm.h>

#include <stdatomic.h>

/* The store as a rank on this host sees it. */
tr_store *store_on_host(tr_store *store, int host);
/* The same, which also tells when the rank's record is there for the others. */
tr_store *store_on_host_telling(tr_store *store, int host, atomic_bool *published);

#endif
