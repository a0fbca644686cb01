/*
 * The map behind the memory store and the TCP server: keys to values, and to whoever waits for a value. No locks.
 */
#ifndef TR_NET_STORE_MAP_H
#define TR_NET_STORE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value; many replies may be sending it while the key already has another one. */
typedef struct tr__value {
    int refs;
    size_t bytes;
    unsigned char data[]; /* and a NUL behind it */
} tr__value;

tr__value *tr__value_new(const void *data, size_t bytes); /* data NULL: to be filled in. NULL without memory */
void tr__value_unref(tr__value *value);

typedef struct tr__entry {
    struct tr__entry *next; /* in its bucket */
    uint64_t hash;
    tr__value *value; /* NULL: nobody has set it; somebody waits */
    void *waiters;    /* for the owner of the map */
    size_t length;
    char key[]; /* length bytes, not terminated */
} tr__entry;

typedef struct tr__map {
    tr__entry **buckets;
    size_t bucket_count, count;
    size_t bytes; /* of entries, keys and values */
    size_t most;  /* values that would make it more than this are refused; 0: there is no limit */
} tr__map;

/* The entry of a key, made when it is missing and `make` is set; else NULL. NULL also without memory. */
tr__entry *tr__map_find(tr__map *map, const char *key, size_t length, bool make);
/* Takes an entry out that has neither value nor waiters. */
void tr__map_prune(tr__map *map, tr__entry *entry);
void tr__map_clear(tr__map *map);

/* Takes an entry's value; false when it has none. */
bool tr__map_delete(tr__map *map, tr__entry *entry);
/* Replaces an entry's value by another, which the map takes over, or NULL. */
void tr__map_put(tr__map *map, tr__entry *entry, tr__value *value);

/* The operations, alike in every store. They return TR_OK, TR_NO_MEMORY, TR_UNSUPPORTED: the map would have more
 * than its most bytes, or TR_FORMAT: the value is no number, or the sum leaves 64 bits. The entry exists; its value changes only
 * on TR_OK. */
int tr__map_set(tr__map *map, tr__entry *entry, const void *data, size_t bytes);
int tr__map_add(tr__map *map, tr__entry *entry, int64_t amount, int64_t *sum);
/* expected NULL: the key must be absent. *changed says whether desired is the value now. */
int tr__map_compare_set(tr__map *map, tr__entry *entry, const void *expected, size_t expected_bytes, const void *desired,
    size_t desired_bytes, bool *changed);

#endif
