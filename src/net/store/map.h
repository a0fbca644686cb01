/*
 * The map behind the memory store and the TCP server: keys to values, and to whoever waits for a value. No locks.
 */
#ifndef TR_NET_STORE_MAP_H
#define TR_NET_STORE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value; many replies may be sending it while the key already has another one. */
typedef struct tr__map_value {
    int refs;
    size_t bytes;
    unsigned char data[]; /* and a NUL behind it */
} tr__map_value;

tr__map_value *tr__map_value_new(const void *data, size_t bytes); /* data NULL: to be filled in. NULL without memory */
void tr__map_value_unref(tr__map_value *value);

typedef struct tr__entry {
    struct tr__entry *next; /* in its bucket */
    uint64_t hash;
    tr__map_value *value; /* NULL: nobody has set it; somebody waits */
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

/* Replaces an entry's value by another, which the map takes over, or NULL. */
void tr__map_put(tr__map *map, tr__entry *entry, tr__map_value *value);

/* What changes a key, alike in every store. */
typedef struct tr__change {
    enum { TR__CHANGE_SET, TR__CHANGE_ADD, TR__CHANGE_COMPARE_SET, TR__CHANGE_DELETE } kind;
    const void *value, *expected; /* COMPARE_SET: expected is what the key must hold, NULL: nothing */
    size_t bytes, expected_bytes;
    int64_t amount;
    /* What came of it: */
    int64_t sum;  /* ADD */
    bool changed; /* DELETE: there was a value */
} tr__change;

/* Return TR_OK, TR_NO_MEMORY, TR_UNSUPPORTED: the map would have more than its most bytes, or TR_FORMAT: the value is no number,
 * or the sum leaves 64 bits. The entry's value changes only on TR_OK. */
int tr__map_set(tr__map *map, tr__entry *entry, const void *data, size_t bytes);
int tr__map_change(tr__map *map, tr__entry *entry, tr__change *change);

#endif
