/* The struct of tr_tensor_list. */
#ifndef TR_TENSOR_LIST_H
#define TR_TENSOR_LIST_H

#include "tensor/tensor.h"

typedef struct tr__list_entry {
    char *name;
    tr_tensor *tensor; /* a reference */
} tr__list_entry;

struct tr_tensor_list {
    tr__object object;
    tr__list_entry *entries;
    int count, capacity;
    char **metadata; /* key, value, key, value, … */
    int metadata_count;
};

extern const tr__type tr__list_type;

#endif
