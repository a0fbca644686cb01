/*
 * The records of the file store, apart from it so that a fuzzer can be put on them.
 */
#ifndef TR_NET_STORE_FILE_H
#define TR_NET_STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A key and its value; both lie in the bytes that were parsed. */
typedef struct tr__store_setting {
    const char *key; /* not terminated */
    size_t key_bytes;
    const void *value;
    size_t bytes;
    bool deletes; /* the key goes; there is no value */
} tr__store_setting;

/* Looks for a whole and sound record at the front of bytes. Returns how many bytes it has; 0: there is none. */
ssize_t tr__store_record(const unsigned char *bytes, size_t count, tr__store_setting *setting);

#endif
