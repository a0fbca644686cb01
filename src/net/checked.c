#include "net/checked.h"

#include "base/crc32c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    PARTS = 16,            /* that one record gathers, at the most */
    LITTLE = TR__CHECKED_AHEAD, /* and room for who has received nothing larger: most connections never carry much */
    HEADER = sizeof(tr__checked_header),
};

_Static_assert(HEADER == 16, "no padding on the wire, and what follows is aligned");

static uint32_t sum_of(const tr__checked_header *header)
{
    return tr__crc32c(0, header, offsetof(tr__checked_header, header));
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* The first `most` bytes of what is offered, as parts of their own. Returns how many parts that are; *bytes is their sum. */
static int take_parts(const struct iovec *offered, int count, size_t at, size_t most, struct iovec parts[PARTS], size_t *bytes)
{
    int taken = 0;
    *bytes = 0;
    for (int i = 0; i < count && taken < PARTS && *bytes < most; i++) {
        size_t skipped = at < offered[i].iov_len ? at : offered[i].iov_len, length = offered[i].iov_len - skipped;
        at -= skipped;
        if (length > most - *bytes) length = most - *bytes;
        if (!length) continue;
        parts[taken++] = (struct iovec){(char *)offered[i].iov_base + skipped, length};
        *bytes += length;
    }
    return taken;
}

static void open_record(tr__checked_sender *s, const struct iovec *parts, int count, size_t bytes)
{
    s->header = (tr__checked_header){.bytes = (uint32_t)bytes, .number = s->number};
    for (int i = 0; i < count; i++)
        s->header.payload = tr__crc32c(s->header.payload, parts[i].iov_base, parts[i].iov_len);
    s->header.header = sum_of(&s->header);
    s->framed = 0;
    s->left = bytes;
}

ssize_t tr__checked_send(tr__checked_sender *s, int socket, const struct iovec *parts, int count)
{
    size_t offered = 0, taken = 0, bytes;
    for (int i = 0; i < count; i++) offered += parts[i].iov_len;
    while (taken < offered) {
        struct iovec out[1 + PARTS];
        int pieces = take_parts(parts, count, taken, s->left ? s->left : TR__CHECKED_MAX, out + 1, &bytes);
        if (!s->left) open_record(s, out + 1, pieces, bytes);
        out[0] = (struct iovec){(char *)&s->header + s->framed, HEADER - s->framed};

        /* More follows at once: the kernel need not make a packet of its own of the last few bytes. */
        int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (taken + bytes < offered ? MSG_MORE : 0);
        struct msghdr m = {.msg_iov = out, .msg_iovlen = (size_t)pieces + 1};
        ssize_t sent = sendmsg(socket, &m, flags);
        if (sent < 0) return taken ? (ssize_t)taken : -1;

        size_t of_header = (size_t)sent < out[0].iov_len ? (size_t)sent : out[0].iov_len;
        s->framed += of_header;
        s->left -= (size_t)sent - of_header;
        taken += (size_t)sent - of_header;
        if (s->left == 0) s->number++;
    }
    return (ssize_t)taken;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The header of the record at `begin`, if it has come. */
static bool read_header(const tr__checked_receiver *r, tr__checked_header *header)
{
    if (r->checked || r->end - r->begin < HEADER) return false;
    memcpy(header, r->buffer + r->begin, HEADER);
    return true;
}

/* Makes room behind what has come, so that a record of so many bytes fits. */
static bool make_room(tr__checked_receiver *r, size_t bytes)
{
    if (r->begin == r->end) r->begin = r->end = 0;
    if (bytes > r->capacity) {
        size_t capacity = bytes <= LITTLE ? LITTLE : HEADER + TR__CHECKED_MAX + HEADER;
        char *larger = realloc(r->buffer, capacity);
        if (!larger) {
            errno = ENOMEM;
            return false;
        }
        r->buffer = larger;
        r->capacity = capacity;
    }
    if (r->begin + bytes > r->capacity) {
        memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    return true;
}

static int damaged(void)
{
    errno = EBADMSG;
    return -1;
}

static bool is_sound(const tr__checked_receiver *r, const tr__checked_header *header)
{
    return header->header == sum_of(header) && header->number == r->number && header->bytes && header->bytes <= TR__CHECKED_MAX;
}

/* Until the payload of a record is in the buffer and checked, or begins to be placed in so much memory. 1; or 0 and -1 as
 * from recv(). */
static int next_record(tr__checked_receiver *r, int socket, char *memory, size_t memory_room)
{
    for (;;) {
        tr__checked_header header;
        size_t whole = HEADER;
        if (read_header(r, &header)) {
            if (!is_sound(r, &header)) return damaged();
            whole += header.bytes;
            size_t there = r->end - r->begin;
            if (there >= whole) {
                r->begin += HEADER;
                if (tr__crc32c(0, r->buffer + r->begin, header.bytes) != header.payload) return damaged();
                r->checked = header.bytes;
                r->number++;
                return 1;
            }
            if (there > HEADER && header.bytes > LITTLE && header.bytes <= memory_room) {
                r->placing = header;
                r->placed = there - HEADER;
                memcpy(memory, r->buffer + r->begin + HEADER, r->placed);
                r->begin = r->end = 0;
                return 1;
            }
        }
        /* Of a large record the rest and the next one's header, so that little has to be moved. */
        size_t want = whole > LITTLE ? whole + HEADER : LITTLE;
        if (!make_room(r, want)) return -1;
        size_t room = r->begin + want - r->end;
        ssize_t got = recv(socket, r->buffer + r->end, room, MSG_DONTWAIT);
        r->drained = got < (ssize_t)room;
        if (got <= 0) return (int)got;
        r->end += (size_t)got;
    }
}

/* Goes on with a record in the caller's memory, and takes the next one's header along. 1: it is there and checked; or as above. */
static int place(tr__checked_receiver *r, int socket, char *memory)
{
    while (r->placed < r->placing.bytes) {
        size_t left = r->placing.bytes - r->placed;
        struct iovec parts[2] = {{memory + r->placed, left}, {r->buffer, HEADER}};
        struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t got = recvmsg(socket, &m, MSG_DONTWAIT);
        r->drained = got < (ssize_t)(left + HEADER);
        if (got <= 0) return (int)got;
        size_t of_record = (size_t)got < left ? (size_t)got : left;
        r->placed += of_record;
        r->end = (size_t)got - of_record;
    }
    if (tr__crc32c(0, memory, r->placing.bytes) != r->placing.payload) return damaged();
    r->placed = 0;
    r->number++;
    return 1;
}

ssize_t tr__checked_receive(tr__checked_receiver *r, int socket, char *memory, size_t room, bool stays)
{
    if (!r->checked && !r->placed) {
        int found = next_record(r, socket, memory, stays ? room : 0);
        if (found <= 0) return found;
    }
    if (r->placed) {
        int placed = place(r, socket, memory);
        return placed <= 0 ? placed : (ssize_t)r->placing.bytes;
    }
    size_t given = room < r->checked ? room : r->checked;
    memcpy(memory, r->buffer + r->begin, given);
    tr__checked_skip(r, given);
    return (ssize_t)given;
}

int tr__checked_peek(tr__checked_receiver *r, int socket, const char **there, size_t *bytes)
{
    int found = r->checked ? 1 : next_record(r, socket, NULL, 0);
    *there = r->buffer + r->begin;
    *bytes = r->checked;
    return found;
}

void tr__checked_skip(tr__checked_receiver *r, size_t bytes)
{
    r->begin += bytes;
    r->checked -= bytes;
}

size_t tr__checked_take_rest(tr__checked_receiver *r, char bytes[TR__CHECKED_AHEAD])
{
    size_t count = r->end - r->begin;
    if (count) memcpy(bytes, r->buffer + r->begin, count);
    r->begin = r->end;
    return count;
}

bool tr__checked_holds(const tr__checked_receiver *r)
{
    tr__checked_header header;
    if (r->checked) return true;
    if (!read_header(r, &header)) return false;
    return !is_sound(r, &header) || r->end - r->begin >= HEADER + (size_t)header.bytes;
}

void tr__checked_free(tr__checked_receiver *r)
{
    free(r->buffer);
    *r = (tr__checked_receiver){0};
}
