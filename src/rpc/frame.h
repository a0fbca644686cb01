/*
 * Messages between workers, as bytes: a frame, its body, and pieces, the data of larger tensors and byte strings, which
 * travel beside the body. All numbers are little-endian, as all hosts of a group are.
 *
 *   request   function name, note, count, values          piece   u64: its block (0: it follows; top bit: yours); u64: its bytes
 *   reply     note, value; of a failure: note, message; then of what was to stay there its number
 *   value     kind, then: tensor  0: none; 1: dtype, device kind, ndim, dims, data     data     0: bytes; 1: piece number
 *                         i64, f64  8 bytes           string, bytes  0: none; 1: length, data
 *                         rref      the reference and the fork that is handed over (rref_state.h)
 *                         tensors   0: none; 1: count, names and tensors, count, metadata
 *
 * Reading trusts nothing: every length is held against what is there. No input or output happens here.
 */
#ifndef TR_RPC_FRAME_H
#define TR_RPC_FRAME_H

#include "rpc/rpc.h"

#include <sys/types.h>

enum {
    TR__RPC_MAGIC = 0x31505254, /* "TRP1" */
    TR__RPC_VERSION = 7,
    TR__RPC_INLINE = 2048,           /* data of a tensor that stays in the body */
    TR__RPC_BODY_MAX = 64 << 20,
    TR__RPC_PIECES_MAX = 4096,
    TR__RPC_NAME_MAX = 255,
    TR__RPC_COUNT_MAX = 1024,        /* values of an internal message */
};
#define TR__RPC_PAYLOAD_MAX ((uint64_t)1 << 40) /* bytes of all pieces */

typedef enum tr__rpc_message_type {
    TR__RPC_REQUEST = 1, /* id: the caller's call */
    TR__RPC_REPLY,       /* id: the call that it answers; status */
    TR__RPC_CANCEL,      /* id: the caller's call */
    TR__RPC_REFER,       /* body: a message of the references (rref_state.h) */
    TR__RPC_ASK,         /* are you done? id: the question */
    TR__RPC_ANSWER,      /* status: what is under way here (drain.c); body: how many calls there were, and the like */
    TR__RPC_END,         /* all are done, or not waited for any more; of a status that is not TR_OK a text says who was lost */
    TR__RPC_TYPES
} tr__rpc_message_type;

typedef struct tr__rpc_frame {
    uint32_t magic;
    uint8_t version, type;
    uint16_t pieces;
    uint64_t id, payload; /* payload: bytes of all pieces */
    uint32_t body;        /* bytes */
    int32_t status;
} tr__rpc_frame;
_Static_assert(sizeof(tr__rpc_frame) == 32, "no padding on the wire");

/* A frame of ours, within its bounds? */
bool tr__rpc_frame_sound(const tr__rpc_frame *frame);

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* Data that goes beside the body: a tensor's elements, row-major, or plain bytes. Borrowed. */
typedef struct tr__rpc_piece {
    const tr_tensor *tensor; /* NULL: */
    const void *data;
    uint64_t bytes;
} tr__rpc_piece;

typedef struct tr__rpc_writer {
    unsigned char *at; /* the body; `small` at first */
    size_t used, room;
    tr__rpc_piece *pieces;
    int piece_count;
    size_t piece_room;
    uint64_t payload;
    bool passes_on; /* nobody uses the values afterwards: what lies in blocks may go with them (blocks.c) */
    /* Hands a reference over: fills in where it lives and the fork, 40 bytes. */
    tr_status (*hand_over)(void *user, tr_rref *ref, unsigned char token[40]);
    void *user;
    tr_status status; /* the first failure */
    unsigned char small[512];
} tr__rpc_writer;

void tr__rpc_writer_begin(tr__rpc_writer *w);
void tr__rpc_writer_end(tr__rpc_writer *w); /* frees */
void tr__rpc_write_bytes(tr__rpc_writer *w, const void *bytes, size_t count);
void tr__rpc_write_u32(tr__rpc_writer *w, uint32_t x);
void tr__rpc_write_u64(tr__rpc_writer *w, uint64_t x);
void tr__rpc_write_text(tr__rpc_writer *w, const char *text);
void tr__rpc_write_note(tr__rpc_writer *w, const tr__rpc_note *note);
void tr__rpc_write_value(tr__rpc_writer *w, const tr_value *value);

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* A piece that has come: release(memory, user) is called once when nobody needs it any more. */
typedef struct tr__rpc_arrived {
    char *memory; /* NULL: was handed on */
    uint64_t bytes;
    void (*release)(void *memory, void *user);
    void *user;
} tr__rpc_arrived;

typedef struct tr__rpc_reader {
    const unsigned char *at, *end;
    tr__rpc_arrived *pieces;
    int piece_count;
    int local_rank; /* whose GPU gets the tensors that come from one */
    /* Takes a reference in. */
    tr_rref *(*take_in)(void *user, const unsigned char token[40]);
    void *user;
    bool bad;
} tr__rpc_reader;

uint32_t tr__rpc_read_u32(tr__rpc_reader *r);
/* Inside the body, NUL-terminated there; NULL: damaged. */
const char *tr__rpc_read_text(tr__rpc_reader *r);
void tr__rpc_read_note(tr__rpc_reader *r, tr__rpc_note *note);
/* Tensors and lists are made in the thread's innermost scope; strings and bytes lie in the body or in pieces. Fails with
 * TR_FORMAT, or without memory. */
tr_status tr__rpc_read_value(tr__rpc_reader *r, tr_value *value);
tr_status tr__rpc_damaged(const char *what);

/* "tensor, f64": of values or kinds, for messages. */
char *tr__rpc_kinds_text(const tr_value *values, int count, char text[256]);
char *tr__rpc_signature_text(const tr_rpc_function *function, char text[256]);

#endif
