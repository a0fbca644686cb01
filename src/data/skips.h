/* Samples of a batch that could not be made and were skipped: .on_bad = TR_SKIP. */
#ifndef TR_DATA_SKIPS_H
#define TR_DATA_SKIPS_H

#include "base/object.h"

/* In order; zeroed: none. */
typedef struct tr__skips {
    char *records; /* of each the sample's number, an int64_t, and what was wrong, with its NUL */
    size_t bytes;
} tr__skips;

tr_status tr__skips_add(tr__skips *skips, int64_t index, const char *text);
/* Takes over a copy of records that another process has made. */
tr_status tr__skips_copy(tr__skips *skips, const char *records, size_t bytes);
/* Reads the record at *at, from 0 on, and moves *at behind it; false at the end. */
bool tr__skips_next(const tr__skips *skips, size_t *at, int64_t *index, const char **text);
void tr__skips_drop(tr__skips *skips);

#endif
