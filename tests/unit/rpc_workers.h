/*
 * Ranks that are processes as workers, for tests: functions that all of them have, and calls of these.
 */
#ifndef TR_TESTS_RPC_WORKERS_H
#define TR_TESTS_RPC_WORKERS_H

#include "processes.h"

#include <trireme/rpc.h>

/* A worker of the default name, and of no short timeout, that has
 *   twice(i64) -> i64
 *   doze(i64) -> i64           so many ms, which it gives back
 *   length(string) -> i64 */
tr_rpc *start_worker(const rank *r);
/* Calls twice. */
tr_status call_worker(tr_rpc *rpc, int to);
/* Does the thread's latest failure say so? */
tr_status says(const char *words);
/* So many bytes, to be freed. */
char *text_of(size_t bytes);

#endif
