/*
 * A collective as the backends see it: checked, complete, and with the signature that all ranks must agree on.
 */
#ifndef TR_COMM_COLLECTIVE_H
#define TR_COMM_COLLECTIVE_H

#include "comm/algo/schedule.h"

#include <trireme/comm.h>

#include <stdatomic.h>

enum { TR__PLACE_TEXT = 64, TR__CALL_TEXT = 192 };

/* ---- A call ------------------------------------------------------------------------------------------------------ */

/* A checked copy of what the caller gave, whose program may be older or newer than the library: fields without meaning
 * for the kind are zero, .timeout_ms is set, and in-place calls have both .in and .out (all_gather: .in is the own
 * block of .out). Of the _V kinds the arrays of those who need them are complete, offsets included; they lie in
 * *arrays, which the caller frees (else NULL). After a failure there is nothing to free. */
tr_status tr__collective_read(const tr_collective *given, int rank, int world_size, int timeout_ms,
    tr_collective *full, int64_t **arrays);

/* On a complete collective: does this rank give data, does it get any? */
bool tr__collective_gives(const tr_collective *c, int rank);
bool tr__collective_gets(const tr_collective *c, int rank);
/* The elements of .in that go to rank `to`, those of .out that come from rank `from`. For whom the call does not read
 * .in or write .out they mean nothing. */
tr__range tr__collective_in(const tr_collective *c, int to);
tr__range tr__collective_out(const tr_collective *c, int from);

/* count elements */
static inline size_t tr__collective_bytes(const tr_collective *c)
{
    return (size_t)c->count * tr_dtype_size(c->dtype);
}

/* Elements from the beginning of .in, or .out, to the end of the last block there. */
int64_t tr__collective_extent(const tr_collective *c, int world_size, bool out);

/* A rank that gives and gets: copies its own block to its place, unless it lies there. past_caches: see base/copy.h. */
void tr__collective_keep_own(const tr_collective *c, int rank, bool past_caches);
/* Runs a collective of a group of one rank: what it gives is what it gets. Not for send and recv. */
static inline void tr__collective_alone(const tr_collective *c)
{
    tr__collective_keep_own(c, 0, false);
}

/* ---- What all ranks must agree on -------------------------------------------------------------------------------- */

/* What a rank calls: which number in the group's order, what, and where in the program. */
typedef struct tr__signature {
    uint64_t sequence; /* 1 is the group's first; 0: not in its order (send, recv) */
    tr_collective_kind kind;
    tr_dtype dtype;
    tr_reduce_op op;
    int root, peer, tag;
    int64_t count;     /* what this rank gives; all_to_all_v: to all together; scatter_v: what it gets */
    uint64_t layout;   /* all_gather_v: a hash of out_counts, which must agree; else 0 */
    int line;
    char file[TR__PLACE_TEXT]; /* the end of the path; empty when the caller did not say */
} tr__signature;

void tr__signature_of(const tr_collective *c, int world_size, uint64_t sequence, tr__signature *signature);
/* Are these calls of two ranks the same collective? Not for send and recv. Of gather_v, scatter_v and all_to_all_v the
 * counts remain to be compared by who knows both: tr__block_mismatch(). */
bool tr__signature_agrees(const tr__signature *a, const tr__signature *b);

/* "all_reduce #17 (sum of f32[1024] at train.c:88)". Returns text. */
char *tr__signature_text(const tr__signature *signature, char text[TR__CALL_TEXT]);
/* The same of a call that a rank has made. */
char *tr__collective_text(const tr_collective *c, int world_size, uint64_t sequence, char text[TR__CALL_TEXT]);
/* The end of a path that fits in so many bytes with its NUL, from its last directories on; "" for NULL. */
const char *tr__place_text(const char *file, size_t room);

/* A call as other processes read it, while its rank may be writing it. Beside it, in words, is the end of the caller's path. */
typedef struct tr__call_words {
    _Atomic uint32_t what; /* kind, dtype and op, a byte each from the lowest, and flags */
    _Atomic int32_t rank;  /* the root, or the peer of a send or recv */
    _Atomic int32_t tag, line;
    _Atomic int64_t count;
} tr__call_words;

void tr__call_write(tr__call_words *words, _Atomic uint64_t *file, size_t file_bytes, const tr_collective *c, uint32_t flags);
/* All but its sequence and layout. What is there may be anything: kind, dtype and op are 0 … 255. */
tr__signature tr__call_read(const tr__call_words *words, const _Atomic uint64_t *file, size_t file_bytes);

/* TR_MISMATCH: rank `of_a`'s call a differs from rank of_b's call b. */
tr_status tr__call_mismatch(const char *group, int of_a, const tr__signature *a, int of_b, const tr__signature *b);
/* TR_MISMATCH: the giver's call has `given` elements for the getter, whose call expects another number. */
tr_status tr__block_mismatch(const char *group, int giver, const tr__signature *give, int64_t given, int getter,
    const tr__signature *get, int64_t expected);

#endif
