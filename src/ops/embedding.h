/* What the kernels of embedding share. */
#ifndef TR_OPS_EMBEDDING_H
#define TR_OPS_EMBEDDING_H

#include "ops/ids.h"

/* Every id is a row. */
tr_status tr__embedding_check(const tr_op_call *call);

/* For each row the positions that name it, in ascending order: first[row], next[position], …, -1. */
typedef struct tr__id_lists {
    int64_t *first, *next;
} tr__id_lists;

tr_status tr__id_lists_make(tr__id_lists *lists, const tr__ids *ids, int64_t rows);
void tr__id_lists_free(tr__id_lists *lists);

#endif
