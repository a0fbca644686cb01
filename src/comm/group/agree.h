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

/* Collective: eight bytes per rank as long as the facts are alike. TR_MISMATCH on every rank, with the same message, when a
 * name or a value differs between ranks: it says `what` differs, on which ranks, and shows the values of the first three
 * names that do. The group can be used on. */
tr_status tr__agree(tr_group *group, const char *what, const tr__facts *facts);
/* The same, and frees the facts. */
tr_status tr__agree_once(tr_group *group, const char *what, tr__facts *facts);

#endif
