/*
 * Names, numbered in the order in which they came, and found by what they are: in the C library's balanced tree, so that a
 * file from a stranger cannot make it slow, as it could a hash table.
 */
#ifndef TR_TENSOR_NAMES_H
#define TR_TENSOR_NAMES_H

#include "base/object.h"

typedef struct tr__names {
    char **text; /* by number; owned */
    int count;
    size_t room;
    void *tree;  /* of texts, by tsearch() */
} tr__names;

/* The name's number, or -1. */
int tr__names_find(const tr__names *names, const char *name);
/* Gives a copy of name, which must not be there yet, the number names->count, and counts it. */
tr_status tr__names_add(tr__names *names, const char *name);
void tr__names_free(tr__names *names);

#endif
