/* What the ranks of a group must hold alike, compared in one exchange. */
#ifndef TR_COMM_AGREE_H
#define TR_COMM_AGREE_H

#include <trireme/comm.h>

/* A name and its value: any bytes. */
typedef struct tr__fact {
    const char *name;
    const void *value;
    size_t bytes;
} tr__fact;

/* Collective. TR_MISMATCH on every rank, with the same message, when a name or a value differs between ranks: it says
 * `what` differs, on which ranks, and shows the values of the first three names that do. The group can be used on. */
tr_status tr__agree(tr_group *group, const char *what, const tr__fact *facts, int count);

#endif
