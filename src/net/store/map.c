#include "net/store/map.h"

#include "base/list.h"
#include "base/rng.h"

#include <trireme/base.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tr__map_value *tr__map_value_new(const void *data, size_t bytes)
{
    tr__map_value *value = malloc(sizeof *value + bytes + 1);
    if (!value) return NULL;
    value->refs = 1;
    value->bytes = bytes;
    if (bytes && data) memcpy(value->data, data, bytes);
    value->data[bytes] = 0;
    return value;
}

void tr__map_value_unref(tr__map_value *value)
{
    if (value && --value->refs == 0) free(value);
}

static uint64_t hash_of(const char *key, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, then mixed so that the low bits are good */
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)key[i]) * 0x100000001b3u;
    return tr__mix(hash, length);
}

/* Twice the buckets when there is an entry per bucket. Without memory the chains just grow longer. */
static void grow(tr__map *map)
{
    size_t wider = map->bucket_count ? 2 * map->bucket_count : 64;
    tr__entry **buckets = calloc(wider, sizeof *buckets);
    if (!buckets) return;
    for (size_t b = 0; b < map->bucket_count; b++) {
        TR__FOR_EACH(entry, map->buckets[b]) {
            tr__entry **bucket = &buckets[entry->hash & (wider - 1)];
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    free(map->buckets);
    map->buckets = buckets;
    map->bucket_count = wider;
}

tr__entry *tr__map_find(tr__map *map, const char *key, size_t length, bool make)
{
    uint64_t hash = hash_of(key, length);
    if (map->bucket_count) {
        tr__entry *entry = map->buckets[hash & (map->bucket_count - 1)];
        for (; entry; entry = entry->next)
            if (entry->hash == hash && entry->length == length && memcmp(entry->key, key, length) == 0) return entry;
    }
    if (!make) return NULL;
    if (map->count >= map->bucket_count) grow(map);
    tr__entry *entry = map->bucket_count ? malloc(sizeof *entry + length) : NULL;
    if (!entry) return NULL;
    tr__entry **bucket = &map->buckets[hash & (map->bucket_count - 1)];
    *entry = (tr__entry){.next = *bucket, .hash = hash, .length = length};
    memcpy(entry->key, key, length);
    *bucket = entry;
    map->count++;
    map->bytes += sizeof *entry + length;
    return entry;
}

void tr__map_prune(tr__map *map, tr__entry *entry)
{
    if (entry->value || entry->waiters) return;
    TR__UNLINK(map->buckets[entry->hash & (map->bucket_count - 1)], entry);
    map->count--;
    map->bytes -= sizeof *entry + entry->length;
    free(entry);
}

void tr__map_clear(tr__map *map)
{
    for (size_t b = 0; b < map->bucket_count; b++) {
        TR__FOR_EACH(entry, map->buckets[b]) {
            tr__map_value_unref(entry->value);
            free(entry);
        }
    }
    free(map->buckets);
    *map = (tr__map){0};
}

static size_t size_of(const tr__map_value *value)
{
    return value ? sizeof *value + value->bytes : 0;
}

void tr__map_put(tr__map *map, tr__entry *entry, tr__map_value *value)
{
    map->bytes += size_of(value) - size_of(entry->value);
    tr__map_value_unref(entry->value);
    entry->value = value;
}

int tr__map_set(tr__map *map, tr__entry *entry, const void *data, size_t bytes)
{
    size_t before = size_of(entry->value), after = sizeof *entry->value + bytes;
    if (map->most && after > before && map->bytes - before + after > map->most) return TR_UNSUPPORTED;
    tr__map_value *value = tr__map_value_new(data, bytes);
    if (!value) return TR_NO_MEMORY;
    tr__map_put(map, entry, value);
    return TR_OK;
}

/* Counters are decimal text, so that a person who reads one sees a number. */
static int add(tr__map *map, tr__entry *entry, int64_t amount, int64_t *sum)
{
    int64_t now = 0;
    if (entry->value) {
        char *end;
        errno = 0;
        now = strtoll((const char *)entry->value->data, &end, 10);
        bool number = entry->value->bytes > 0 && end == (char *)entry->value->data + entry->value->bytes;
        if (!number || errno) return TR_FORMAT;
    }
    if (__builtin_add_overflow(now, amount, &now)) return TR_FORMAT;
    char text[24];
    int length = snprintf(text, sizeof text, "%" PRId64, now);
    int status = tr__map_set(map, entry, text, (size_t)length);
    if (status == TR_OK) *sum = now;
    return status;
}

int tr__map_change(tr__map *map, tr__entry *entry, tr__change *c)
{
    const tr__map_value *now = entry->value;
    bool equal = now && c->expected && now->bytes == c->expected_bytes && memcmp(now->data, c->expected, now->bytes) == 0;
    c->changed = true;
    switch (c->kind) {
    case TR__CHANGE_ADD: return add(map, entry, c->amount, &c->sum);
    case TR__CHANGE_SET: break;
    case TR__CHANGE_COMPARE_SET: c->changed = c->expected ? equal : !now; break;
    case TR__CHANGE_DELETE:
        c->changed = now != NULL;
        tr__map_put(map, entry, NULL);
        return TR_OK;
    }
    return c->changed ? tr__map_set(map, entry, c->value, c->bytes) : TR_OK;
}
