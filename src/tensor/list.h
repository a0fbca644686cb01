/* The struct of tr_tensor_list. */
#ifndef TR_TENSOR_LIST_H
#define TR_TENSOR_LIST_H

#include "tensor/names.h"
#include "tensor/tensor.h"

typedef struct tr__list_entry {
    const char *name;  /* in the list's names */
    tr_tensor *tensor; /* a reference */
} tr__list_entry;

struct tr_tensor_list {
    tr__object object;
    tr__list_entry *entries;
    int count;
    size_t room;
    tr__names names; /* of the entries, with their numbers */
    tr__names keys;  /* of the metadata; */
    char **values;   /* a key's number is its value's */
    size_t values_room;
};

extern const tr__type tr__list_type;

#endif
