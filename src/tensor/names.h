/*
 * Names, numbered in the order in which they came, and found by what they are.
 *
 * A crit-bit tree: an inner node is a bit in which the names below it differ, a leaf is a name. Looking one up takes at
 * most as many steps as it has bits, whatever the other names are, so that a file from a stranger cannot make it slow,
 * as it could a hash table.
 */
#ifndef TR_TENSOR_NAMES_H
#define TR_TENSOR_NAMES_H

#include "base/object.h"

#include <stdint.h>

typedef struct tr__name_node {
    uint32_t byte;    /* where the names below differ first; a name that has ended has zeros there */
    uint8_t bit;      /* and in which bit of it */
    int32_t child[2]; /* of names with and without the bit: a node, or ~number of a name */
} tr__name_node;

typedef struct tr__names {
    char **text; /* by number; owned */
    int count;
    tr__name_node *nodes; /* one less than names */
    size_t text_room, nodes_room;
    int32_t root;         /* as a child; undefined while there is no name */
} tr__names;

/* The name's number, or -1. */
int tr__names_find(const tr__names *names, const char *name);
/* Gives a copy of name, which must not be there yet, the number names->count, and counts it. */
tr_status tr__names_add(tr__names *names, const char *name);
void tr__names_free(tr__names *names);

#endif
