/*
 * Checksummed records: how the bytes of a connection travel in the clear. TCP's own 16-bit sum misses one damaged
 * segment in some ten thousand, and none of what a faulty middlebox, driver or memory damages before or after it
 * (Stone and Partridge, "When the CRC and TCP checksum disagree", SIGCOMM 2000).
 *
 *   record   header, then up to TR__CHECKED_MAX bytes of payload
 *   header   length and CRC-32C of the payload, the record's number on this connection, and the CRC-32C of these three
 *
 * So a flipped bit, and a record that is lost, repeated or out of its turn, are found at the record's header or end; the length
 * is never believed unchecked. A receiver counts no byte of a record before all of it was checked.
 */
#ifndef TR_NET_CHECKED_H
#define TR_NET_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    TR__CHECKED_MAX = 128 << 10,
    TR__CHECKED_AHEAD = 4 << 10, /* the most that is taken from the socket behind a record */
};

/* Little-endian, as all hosts of a group must be. */
typedef struct tr__checked_header {
    uint32_t bytes;   /* of the payload: 1 … TR__CHECKED_MAX */
    uint32_t payload; /* its CRC-32C */
    uint32_t number;  /* modulo 2^32 */
    uint32_t header;  /* CRC-32C of the above */
} tr__checked_header;

/* Both begin as zeroes. */
typedef struct tr__checked_sender {
    uint32_t number;   /* of the record that is open, or comes next */
    tr__checked_header header;
    size_t framed;     /* bytes of the header that the socket has taken */
    size_t left;       /* bytes of the payload that it has not; 0: no record is open */
} tr__checked_sender;

typedef struct tr__checked_receiver {
    uint32_t number;
    char *buffer;      /* [capacity], owned */
    size_t capacity;
    size_t begin, end; /* what has come and was not given out */
    bool drained;      /* the socket gave less than it was asked for when it was read last */
    size_t checked;    /* bytes of a record's payload from `begin` on that may be given out */
    size_t placed;     /* bytes of a record's payload that lie in the caller's memory, unchecked: its header is `placing` */
    tr__checked_header placing;
} tr__checked_receiver;

/* As sendmsg() on a non-blocking socket: how much was taken, or -1 and errno. What was not taken must be offered again, as it
 * was, at the beginning of the next call. */
ssize_t tr__checked_send(tr__checked_sender *s, int socket, const struct iovec *parts, int count);

/*
 * As recv() of some of what has come; EBADMSG: a record is damaged, and nothing behind it can be read. With `stays` the memory
 * comes again in the next call, behind what was counted in this one: then large records go there straight from the socket, and
 * bytes that do not count yet may lie there (`placed`).
 */
ssize_t tr__checked_receive(tr__checked_receiver *r, int socket, char *memory, size_t room, bool stays);
/* What a receive would give out next, where it lies: *bytes at *there, at least one. 1; or 0 and -1 as from recv(). Then that so
 * many of them are taken. */
int tr__checked_peek(tr__checked_receiver *r, int socket, const char **there, size_t *bytes);
void tr__checked_skip(tr__checked_receiver *r, size_t bytes);
/* What has come behind the records that were given out, where the stream goes on without records: copies it, and returns how many
 * bytes that are. */
size_t tr__checked_take_rest(tr__checked_receiver *r, char bytes[TR__CHECKED_AHEAD]);
/* Does a receive find something without the socket? */
bool tr__checked_holds(const tr__checked_receiver *r);
void tr__checked_free(tr__checked_receiver *r);

#endif
