/* What the ranks of a group must hold alike. */
#ifndef TR_COMM_GROUP_AGREE_H
#define TR_COMM_GROUP_AGREE_H

#include <trireme/comm.h>

/* A name and its value: any bytes, shown as they are where they are text. */
typedef struct tr__fact {
    const char *name;
    const void *value;
    size_t bytes;
    bool told; /* where it differs rank 0 tells so in the log: nothing is refused */
} tr__fact;

/* The facts of a rank, as they travel. Zeroed: none. To be freed. */
typedef struct tr__facts {
    char *bytes;
    size_t length, capacity;
    bool lost; /* there was no memory for one */
} tr__facts;

void tr__facts_add(tr__facts *facts, const tr__fact *fact);
void tr__facts_say(tr__facts *facts, const char *name, const char *format, ...) TR_PRINTF(3, 4);
void tr__facts_number(tr__facts *facts, const char *name, double value);
/* The fact at *at, from 0 on, which goes behind it; false at the end. */
bool tr__facts_next(const tr__facts *facts, size_t *at, tr__fact *fact);
void tr__facts_free(tr__facts *facts);

/* A number with as few digits as tell it from all others, whatever the locale. Returns text. */
enum { TR__NUMBER_TEXT = 32 };
char *tr__number_text(double value, char text[TR__NUMBER_TEXT]);

/* Collective: eight bytes per rank as long as the facts are alike. The group can be used on.
 * own: the status of what this rank did alone before. A rank that failed gets its own failure again; elsewhere TR_PEER names the
 * ranks that failed, and says why.
 * TR_MISMATCH on every rank, with the same message, when a name or a value differs between ranks: it says `what` differs, on which
 * ranks, and shows the values of the first three names that do. facts: NULL where nothing but the ranks' own failures matters.
 * No group: only this rank. */
tr_status tr__agree(tr_group *group, const char *what, tr_status own, const tr__facts *facts);
/* The same, and frees the facts. */
tr_status tr__agree_once(tr_group *group, const char *what, tr_status own, tr__facts *facts);

/* Sums n numbers over the ranks in one all_reduce, which carries whether a rank has failed: then as tr__agree(). */
enum { TR__SUMS_MOST = 8 };
tr_status tr__agree_sums(tr_group *group, const char *what, tr_status own, double *sums, int n);

#endif
