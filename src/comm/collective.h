/*
 * A collective as the backends see it: checked, complete, and with the signature that all ranks must agree on.
 */
#ifndef TR_COMM_COLLECTIVE_H
#define TR_COMM_COLLECTIVE_H

#include <trireme/comm.h>

enum { TR__PLACE_TEXT = 64, TR__CALL_TEXT = 192 };

/* What a rank calls: which number in the group's order, what, and where in the program. */
typedef struct tr__signature {
    uint64_t sequence; /* 1 is the group's first */
    tr_collective_kind kind;
    tr_dtype dtype;
    tr_reduce_op op;
    int root;
    int64_t count;
    int line;
    char file[TR__PLACE_TEXT]; /* the end of the path; empty when the caller did not say */
} tr__signature;

/* A checked copy of what the caller gave, whose program may be older or newer than the library: fields without meaning
 * for the kind are zero, .in is never NULL where .out is not, .timeout_ms is set. */
tr_status tr__collective_read(const tr_collective *given, int world_size, int timeout_ms, tr_collective *full);

static inline size_t tr__collective_bytes(const tr_collective *c)
{
    return (size_t)c->count * tr_dtype_size(c->dtype);
}

/* "all_reduce #17 (sum of f32[1024] at train.c:88)". Returns text. */
char *tr__signature_text(const tr__signature *signature, char text[TR__CALL_TEXT]);
/* The end of a path that fits in TR__PLACE_TEXT, from its last directories on; "" for NULL. */
const char *tr__place_text(const char *file);

#endif
