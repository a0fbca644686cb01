/* Flight recorders of ranks that a test makes up, and what is read of them. */
#ifndef TR_TESTS_RECORDERS_H
#define TR_TESTS_RECORDERS_H

#include "comm/record/record.h"

tr__recorder *open_rank(const char *group, int number, int world, const char *backend, const char *folder);
/* A call that has n in all its places. */
tr_collective call_number(int64_t n);
/* Makes a call and ends it. */
void make_call(tr__recorder *r, uint64_t sequence);
/* The records of this process, so many. */
void read_own(tr__records *records, int count);
/* The memfd of a record, opened anew and mapped for writing: what a mad process could do. */
tr__record_header *open_own(int *descriptor);
/* The words stand in text, and then for how long that has lasted: seconds, to the millisecond, and no more of them than have
 * passed since `began`. */
void check_lasting(const char *text, const char *words, int64_t began);

#endif
