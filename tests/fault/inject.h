/* What the injected system calls share, inside a rank of the job. */
#ifndef INJECT_H
#define INJECT_H

#include "fault.h"

/* The page of this attempt; NULL in a process that is not disturbed. */
fault_page *injected(void);
int injected_rank(void);
/* Is this the fault of the attempt, and this rank the one that it hits? */
bool injects(fault_kind kind);
/* Notes that it has happened, and what. */
void injected_now(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Numbers that follow from the seed, one after the other, for one thread at a time. */
int64_t injected_below(int64_t limit);

#endif
