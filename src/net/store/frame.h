/*
 * The TCP store's protocol: frames, one request and one reply at a time. All numbers are little-endian.
 *
 *     0  u32  bytes after the header
 *     4  u8   version: 1
 *     5  u8   type
 *     6  u16  bytes of the key
 *     8       the key, then what the type says:
 *
 *     HELLO         u64 magic                          first frame of a client; its key is empty
 *     GET, WAIT     u32 timeout in milliseconds        0: does not wait
 *     SET           the value
 *     DELETE        nothing; the reply says with ABSENT that there was none
 *     ADD           i64 amount
 *     COMPARE_SET   u8 is something expected?, u32 its bytes, the expected value, the desired value
 *     REPLY         u8 code, the value or the sum or what went wrong; its key is empty
 *     GATHER        u32 timeout in milliseconds, then a list of keys that are waited for; its own key is empty. The reply,
 *                   at the timeout too, holds a list with a value for each
 *
 * A list is items one after the other: of keys, u16 bytes and the key; of values, u32 bytes plus 1 and the value, or 0
 * where there is none.
 *
 * Where the job has a token, all of it runs inside TLS (net/tls.h). This file does no input or output, so that a
 * fuzzer can be put on it.
 */
#ifndef TR_NET_STORE_FRAME_H
#define TR_NET_STORE_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { TR__FRAME_VERSION = 1, TR__FRAME_HEADER = 8 };
#define TR__FRAME_MAGIC 0x31454d4552495254u /* "TRIREME1" */

typedef enum tr__frame_type {
    TR__FRAME_HELLO = 1,
    TR__FRAME_GET,
    TR__FRAME_WAIT,
    TR__FRAME_SET,
    TR__FRAME_ADD,
    TR__FRAME_COMPARE_SET,
    TR__FRAME_REPLY,
    TR__FRAME_GATHER,
    TR__FRAME_DELETE,
} tr__frame_type;

typedef enum tr__frame_code {
    TR__REPLY_OK,
    TR__REPLY_ABSENT,    /* COMPARE_SET, DELETE: there is no value */
    TR__REPLY_TIMEOUT,
    TR__REPLY_NO_NUMBER, /* ADD */
    TR__REPLY_NO_MEMORY,
    TR__REPLY_REFUSED,   /* HELLO: in clear text, where TLS is spoken, or the other way round */
    TR__REPLY_TOO_LARGE, /* GATHER: the list of values is larger than a value may be */
    TR__REPLY_FULL,      /* the store would hold more than it may */
    TR__REPLY_CODES
} tr__frame_code;

/* Little-endian, of so many bytes. */
uint64_t tr__read_number(const unsigned char *bytes, int size);
void tr__write_number(unsigned char *bytes, int size, uint64_t number);

/* A frame, decoded. Pointers lead into the bytes that were parsed. */
typedef struct tr__frame {
    tr__frame_type type;
    const char *key; /* not terminated */
    size_t key_bytes;
    const void *value; /* the desired one of a COMPARE_SET; the keys of a GATHER */
    size_t value_bytes;
    const void *expected; /* NULL: nothing */
    size_t expected_bytes;
    int64_t amount;
    uint32_t timeout_ms;
    tr__frame_code code;
} tr__frame;

/* Looks for a whole frame at the front of bytes, of at most `limit` bytes in all. Returns how many bytes it has; 0 when
 * more must come; -1 when this is no frame, whatever may follow. */
ssize_t tr__frame_parse(const unsigned char *bytes, size_t count, size_t limit, tr__frame *frame);
/* The largest frame that there is. */
#define TR__FRAME_MAX (TR__FRAME_HEADER + TR__KEY_MAX + 5 + 2 * (size_t)TR__VALUE_MAX)

/* A list, or what is left of one. */
typedef struct tr__list {
    const unsigned char *items;
    size_t bytes;
} tr__list;

/* Takes the first item off a list; false when it is empty or broken. */
bool tr__list_take_key(tr__list *list, const char **key, size_t *bytes);
bool tr__list_take_value(tr__list *list, const void **value, size_t *bytes); /* *value is NULL where there is none */
/* Writes an item; returns where the next one goes. */
enum { TR__LIST_KEY = 2, TR__LIST_VALUE = 4 }; /* bytes before each */
unsigned char *tr__list_put_key(unsigned char *at, const char *key, size_t bytes);
unsigned char *tr__list_put_value(unsigned char *at, const void *value, size_t bytes); /* NULL: there is none */

/* The frame as at most five pieces to be written one after the other; head holds the first. Returns their number. */
enum { TR__FRAME_PIECES = 5, TR__FRAME_HEAD = 32 };
int tr__frame_pieces(const tr__frame *frame, unsigned char head[TR__FRAME_HEAD], struct iovec pieces[TR__FRAME_PIECES]);

#endif
