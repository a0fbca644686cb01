/*
 * What workers of one host write into memory that they share. Each has a ring for every other one; a record in it is a
 * message: a frame, its body, and the places of its pieces, which lie in blocks, shared segments of their own. Blocks are shown
 * before a record names them, and are the receiver's from the record until it sets their flag back.
 */
#ifndef TR_RPC_RING_H
#define TR_RPC_RING_H

#include "rpc/frame.h"

#include "base/memory.h"

#include <stdatomic.h>

enum {
    TR__RPC_RING_MAGIC = 0x52505254, /* "TRPR" */
    TR__RPC_RING_BYTES = 256 << 10,
    TR__RPC_RECORD_MOST = TR__RPC_RING_BYTES / 4, /* a longer body goes into a block of its own */
    TR__RPC_BLOCK_HEAD = 64,
};

/* What memory is shown for. */
enum tr__rpc_purpose { TR__RPC_IS_BELL = 1, TR__RPC_IS_RING, TR__RPC_IS_BLOCK };

typedef struct tr__rpc_ring {
    uint32_t magic, version;
    atomic_bool over;                               /* the writer reads no more: what it is sent makes no sense */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t tail; /* written so far */
    _Alignas(TR__CACHE_LINE) _Atomic uint64_t head; /* read so far */
    _Alignas(TR__CACHE_LINE) unsigned char data[TR__RPC_RING_BYTES];
} tr__rpc_ring;

/* A record does not cross the ring's end: padding goes before one that would. */
enum tr__rpc_record_flag {
    TR__RPC_PAD = 1,         /* nothing but its length */
    TR__RPC_BODY_BESIDE = 2, /* the body lies in the first of the blocks */
    TR__RPC_DROP = 4,        /* no message: a place follows, of a block that is not used any more */
};

typedef struct tr__rpc_record { /* then: the body, filled up to 8 bytes, and the pieces' places */
    uint32_t bytes, flags;       /* of all of it; a multiple of 8 */
    tr__rpc_frame frame;
} tr__rpc_record;

typedef struct tr__rpc_place {
    uint64_t segment, bytes;
} tr__rpc_place;

typedef struct tr__rpc_block_head { /* the first TR__RPC_BLOCK_HEAD bytes of a block */
    atomic_uint busy; /* the receiver has it */
} tr__rpc_block_head;

#endif
