#include "rpc/frame.h"

#include "base/memory.h"
#include "tensor/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tr__rpc_frame_sound(const tr__rpc_frame *f)
{
    if (f->magic != TR__RPC_MAGIC || f->version != TR__RPC_VERSION) return false;
    if (f->type < TR__RPC_REQUEST || f->type >= TR__RPC_TYPES) return false;
    return f->body <= TR__RPC_BODY_MAX && f->pieces <= TR__RPC_PIECES_MAX && f->payload <= TR__RPC_PAYLOAD_MAX;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

const char *tr_value_kind_name(tr_value_kind kind)
{
    static const char *const names[] = {
#define NAME(name, member, type, text) text,
        TR_VALUE_MAP(NAME)
#undef NAME
    };
    return (unsigned)kind < TR_VALUE_COUNT ? names[kind] : "unknown";
}

static size_t append_kind(char text[256], size_t used, tr_value_kind kind, bool first)
{
    int added = snprintf(text + used, 256 - used, "%s%s", first ? "" : ", ", tr_value_kind_name(kind));
    used += added > 0 ? (size_t)added : 0;
    return used < 256 ? used : 255;
}

char *tr__rpc_kinds_text(const tr_value *values, int count, char text[256])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < count; i++) used = append_kind(text, used, values[i].kind, i == 0);
    if (count == 0) snprintf(text, 256, "nothing");
    return text;
}

char *tr__rpc_signature_text(const tr_rpc_function *f, char text[256])
{
    size_t used = 0;
    for (int i = 0; i < f->count; i++) used = append_kind(text, used, f->kinds[i], i == 0);
    snprintf(text + used, 256 - used, "%s-> %s", f->count ? " " : "", tr_value_kind_name(f->returns));
    return text;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

void tr__rpc_writer_begin(tr__rpc_writer *w)
{
    w->at = w->small;
    w->used = 0;
    w->room = sizeof w->small;
    w->pieces = NULL;
    w->piece_count = 0;
    w->piece_room = 0;
    w->payload = 0;
    w->passes_on = false;
    w->status = TR_OK;
    w->hand_over = NULL;
    w->user = NULL;
}

void tr__rpc_writer_end(tr__rpc_writer *w)
{
    if (w->at != w->small) free(w->at);
    free(w->pieces);
}

static bool make_room(tr__rpc_writer *w, size_t count)
{
    if (w->status != TR_OK) return false;
    if (count <= w->room - w->used) return true;
    size_t room = 2 * w->room + count;
    if (w->used + count > TR__RPC_BODY_MAX) {
        w->status = tr__fail(TR_INVALID, "rpc: the texts, numbers and small tensors of a message have more than %d MiB",
            TR__RPC_BODY_MAX >> 20);
        return false;
    }
    unsigned char *grown = realloc(w->at == w->small ? NULL : w->at, room);
    if (!grown) {
        w->status = tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        return false;
    }
    if (w->at == w->small) memcpy(grown, w->small, w->used);
    w->at = grown;
    w->room = room;
    return true;
}

void tr__rpc_write_bytes(tr__rpc_writer *w, const void *bytes, size_t count)
{
    if (count == 0 || !make_room(w, count)) return;
    memcpy(w->at + w->used, bytes, count);
    w->used += count;
}

static void write_u8(tr__rpc_writer *w, unsigned x)
{
    tr__rpc_write_bytes(w, &(uint8_t){(uint8_t)x}, 1);
}

void tr__rpc_write_u32(tr__rpc_writer *w, uint32_t x)
{
    tr__rpc_write_bytes(w, &x, sizeof x);
}

void tr__rpc_write_u64(tr__rpc_writer *w, uint64_t x)
{
    tr__rpc_write_bytes(w, &x, sizeof x);
}

/* With its NUL. */
void tr__rpc_write_text(tr__rpc_writer *w, const char *text)
{
    size_t length = strlen(text) + 1;
    if (length > TR__RPC_BODY_MAX) length = TR__RPC_BODY_MAX; /* which does not fit, and fails */
    tr__rpc_write_u32(w, (uint32_t)length);
    tr__rpc_write_bytes(w, text, length);
}

void tr__rpc_write_note(tr__rpc_writer *w, const tr__rpc_note *note)
{
    uint32_t bytes = note->bytes < TR__RPC_NOTE ? note->bytes : TR__RPC_NOTE;
    write_u8(w, bytes);
    tr__rpc_write_bytes(w, note->data, bytes);
}

static void add_piece(tr__rpc_writer *w, tr__rpc_piece piece)
{
    if (w->status != TR_OK) return;
    if (w->piece_count == TR__RPC_PIECES_MAX || piece.bytes > TR__RPC_PAYLOAD_MAX - w->payload) {
        w->status = tr__fail(TR_INVALID, "rpc: a message has at most %d tensors of more than %d bytes, and %llu bytes",
            TR__RPC_PIECES_MAX, TR__RPC_INLINE, (unsigned long long)TR__RPC_PAYLOAD_MAX);
        return;
    }
    if (!tr__grow(&w->pieces, (size_t)w->piece_count, &w->piece_room, sizeof *w->pieces)) {
        w->status = tr__fail(TR_NO_MEMORY, "rpc: no memory for a message");
        return;
    }
    tr__rpc_write_u32(w, (uint32_t)w->piece_count);
    w->pieces[w->piece_count++] = piece;
    w->payload += piece.bytes;
}

static void write_data(tr__rpc_writer *w, const tr_tensor *tensor, const void *data, size_t bytes)
{
    bool beside = bytes > TR__RPC_INLINE;
    write_u8(w, beside);
    if (beside) {
        add_piece(w, (tr__rpc_piece){tensor, data, bytes});
    } else if (!tensor) {
        tr__rpc_write_bytes(w, data, bytes);
    } else if (bytes && make_room(w, bytes)) {
        tr_status status = tr_copy_out(tensor, w->at + w->used, bytes);
        if (status != TR_OK) w->status = status;
        w->used += bytes;
    }
}

static void write_tensor(tr__rpc_writer *w, const tr_tensor *x)
{
    write_u8(w, x != NULL);
    if (!x) return;
    if (tr__bad(x)) {
        if (w->status == TR_OK) w->status = tr_status_of(x);
        return;
    }
    write_u8(w, x->dtype);
    write_u8(w, tr__device_of(x).kind);
    write_u8(w, (unsigned)x->shape.ndim);
    for (int i = 0; i < x->shape.ndim; i++) tr__rpc_write_u64(w, (uint64_t)x->shape.dim[i]);
    write_data(w, x, NULL, (size_t)tr__numel(x->shape) * tr_dtype_size(x->dtype));
}

static void write_optional_bytes(tr__rpc_writer *w, const void *data, size_t bytes)
{
    write_u8(w, data != NULL);
    if (!data) return;
    tr__rpc_write_u64(w, bytes);
    write_data(w, NULL, data, bytes);
}

static void write_tensors(tr__rpc_writer *w, const tr_tensor_list *list)
{
    write_u8(w, list != NULL);
    if (!list) return;
    if (list->object.error) {
        if (w->status == TR_OK) w->status = tr_status_of(list);
        return;
    }
    tr__rpc_write_u32(w, (uint32_t)list->count);
    for (int i = 0; i < list->count; i++) {
        tr__rpc_write_text(w, list->entries[i].name);
        write_tensor(w, list->entries[i].tensor);
    }
    tr__rpc_write_u32(w, (uint32_t)list->keys.count);
    for (int i = 0; i < list->keys.count; i++) {
        tr__rpc_write_text(w, list->keys.text[i]);
        tr__rpc_write_text(w, list->values[i]);
    }
}

static void write_rref(tr__rpc_writer *w, tr_rref *ref)
{
    unsigned char token[40] = {0};
    write_u8(w, ref != NULL);
    if (!ref || w->status != TR_OK) return;
    tr_status status = tr_status_of(ref);
    if (status == TR_OK) status = w->hand_over(w->user, ref, token);
    if (status != TR_OK) w->status = status;
    tr__rpc_write_bytes(w, token, sizeof token);
}

void tr__rpc_write_value(tr__rpc_writer *w, const tr_value *v)
{
    write_u8(w, v->kind);
    switch (v->kind) {
    case TR_VALUE_NONE: return;
    case TR_VALUE_TENSOR: write_tensor(w, v->tensor); return;
    case TR_VALUE_I64: tr__rpc_write_u64(w, (uint64_t)v->i64); return;
    case TR_VALUE_F64: tr__rpc_write_bytes(w, &v->f64, sizeof v->f64); return;
    case TR_VALUE_STRING: write_optional_bytes(w, v->string, v->string ? strlen(v->string) + 1 : 0); return;
    case TR_VALUE_BYTES: write_optional_bytes(w, v->bytes.data, v->bytes.size); return;
    case TR_VALUE_RREF: write_rref(w, v->rref); return;
    case TR_VALUE_TENSORS: write_tensors(w, v->tensors); return;
    case TR_VALUE_OBJECT:
        if (w->status == TR_OK)
            w->status = tr__fail(TR_UNSUPPORTED, "rpc: an object does not travel; a reference to it does (tr_remote)");
        return;
    case TR_VALUE_COUNT: break;
    }
    if (w->status == TR_OK) w->status = tr__fail(TR_INVALID, "rpc: a value of the unknown kind %d", (int)v->kind);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static const unsigned char *take(tr__rpc_reader *r, uint64_t count)
{
    if (r->bad || count > (uint64_t)(r->end - r->at)) {
        r->bad = true;
        return NULL;
    }
    const unsigned char *at = r->at;
    r->at += count;
    return at;
}

static unsigned read_u8(tr__rpc_reader *r)
{
    const unsigned char *at = take(r, 1);
    return at ? *at : 0;
}

uint32_t tr__rpc_read_u32(tr__rpc_reader *r)
{
    uint32_t x = 0;
    const unsigned char *at = take(r, sizeof x);
    if (at) memcpy(&x, at, sizeof x);
    return x;
}

static uint64_t read_u64(tr__rpc_reader *r)
{
    uint64_t x = 0;
    const unsigned char *at = take(r, sizeof x);
    if (at) memcpy(&x, at, sizeof x);
    return x;
}

const char *tr__rpc_read_text(tr__rpc_reader *r)
{
    uint32_t length = tr__rpc_read_u32(r);
    const unsigned char *at = take(r, length);
    if (at && length && at[length - 1] == 0 && !memchr(at, 0, length - 1)) return (const char *)at;
    r->bad = true;
    return NULL;
}

void tr__rpc_read_note(tr__rpc_reader *r, tr__rpc_note *note)
{
    *note = (tr__rpc_note){.bytes = read_u8(r)};
    if (note->bytes > TR__RPC_NOTE) r->bad = true;
    const unsigned char *at = take(r, note->bytes);
    if (at) memcpy(note->data, at, note->bytes);
}

tr_status tr__rpc_damaged(const char *what)
{
    return tr__fail(TR_FORMAT, "rpc: damaged message: %s", what);
}

static tr__rpc_arrived *read_piece(tr__rpc_reader *r, uint64_t bytes)
{
    uint32_t number = tr__rpc_read_u32(r);
    if (r->bad || number >= (uint32_t)r->piece_count || r->pieces[number].bytes != bytes || !r->pieces[number].memory)
        return NULL;
    return &r->pieces[number];
}

static tr_tensor *tensor_of_piece(tr__rpc_arrived *piece, tr_shape shape, tr_dtype dtype)
{
    tr_tensor *x = tr_wrap(piece->memory, shape, dtype, piece->release, piece->user);
    if (!tr__bad(x)) piece->memory = NULL; /* the tensor's now */
    return x;
}

static tr_tensor *read_tensor_data(tr__rpc_reader *r, tr_shape shape, tr_dtype dtype, uint64_t bytes)
{
    if (read_u8(r)) {
        tr__rpc_arrived *piece = read_piece(r, bytes);
        return piece ? tensor_of_piece(piece, shape, dtype) : NULL;
    }
    const unsigned char *at = take(r, bytes);
    if (!at) return NULL;
    tr_tensor *x = tr__tensor_new(shape, dtype, tr_cpu(0));
    if (!tr__bad(x) && bytes) memcpy(tr__ptr(x), at, bytes);
    return x;
}

/* To this worker's device of the kind that it comes from, where there is one here. */
static tr_tensor *bring_home(tr_tensor *x, unsigned device_kind, int local_rank)
{
    int devices = device_kind == TR_CUDA ? tr_device_count(TR_CUDA) : 0;
    if (devices == 0) return x;
    tr_tensor *there = tr__tensor_new(x->shape, x->dtype, tr_cuda(local_rank % devices));
    return tr_copy_into(there, x) == TR_OK ? there : tr__tensor_failed();
}

static tr_status read_tensor(tr__rpc_reader *r, tr_tensor **out)
{
    *out = NULL;
    if (!read_u8(r)) return r->bad ? tr__rpc_damaged("a tensor is missing") : TR_OK;
    unsigned dtype = read_u8(r), device_kind = read_u8(r);
    tr_shape shape = {.ndim = (int)read_u8(r)};
    if (r->bad || dtype >= TR_DTYPE_COUNT || shape.ndim > TR_MAX_DIMS) return tr__rpc_damaged("no tensor is like that");
    for (int i = 0; i < shape.ndim; i++) shape.dim[i] = (int64_t)read_u64(r);
    int64_t bytes;
    if (r->bad || !tr__shape_bytes(shape, (tr_dtype)dtype, &bytes)) return tr__rpc_damaged("a shape that cannot be");
    tr_tensor *x = read_tensor_data(r, shape, (tr_dtype)dtype, (uint64_t)bytes);
    if (!x) return tr__rpc_damaged("the data of a tensor are missing");
    if (!tr__bad(x)) x = bring_home(x, device_kind, r->local_rank);
    *out = x;
    return tr_status_of(x);
}

static tr_status read_optional_bytes(tr__rpc_reader *r, tr_bytes *out)
{
    *out = (tr_bytes){NULL, 0};
    if (!read_u8(r)) return r->bad ? tr__rpc_damaged("bytes are missing") : TR_OK;
    uint64_t bytes = read_u64(r);
    if (read_u8(r)) {
        const tr__rpc_arrived *piece = read_piece(r, bytes);
        if (!piece) return tr__rpc_damaged("bytes are missing");
        *out = (tr_bytes){piece->memory, bytes};
        return TR_OK;
    }
    const unsigned char *at = take(r, bytes);
    if (!at) return tr__rpc_damaged("bytes are missing");
    *out = (tr_bytes){at, bytes};
    return TR_OK;
}

static tr_status read_string(tr__rpc_reader *r, const char **out)
{
    tr_bytes bytes;
    TR__TRY(read_optional_bytes(r, &bytes));
    *out = bytes.data;
    if (bytes.data && (!bytes.size || ((const char *)bytes.data)[bytes.size - 1] != 0))
        return tr__rpc_damaged("a string without an end");
    return TR_OK;
}

static tr_status read_metadata(tr__rpc_reader *r, tr_tensor_list *list)
{
    uint32_t count = tr__rpc_read_u32(r);
    for (uint32_t i = 0; i < count && !r->bad; i++) {
        const char *key = tr__rpc_read_text(r), *value = tr__rpc_read_text(r);
        if (key && value) TR__TRY(tr_list_set_metadata(list, key, value));
    }
    return r->bad ? tr__rpc_damaged("a list's metadata") : TR_OK;
}

static tr_status read_tensors(tr__rpc_reader *r, tr_tensor_list **out)
{
    *out = NULL;
    if (!read_u8(r)) return r->bad ? tr__rpc_damaged("a list is missing") : TR_OK;
    tr_tensor_list *list = tr_list_new();
    uint32_t count = tr__rpc_read_u32(r);
    for (uint32_t i = 0; i < count && !r->bad; i++) {
        const char *name = tr__rpc_read_text(r);
        tr_tensor *x;
        if (!name) break;
        TR__TRY(read_tensor(r, &x));
        if (!x) return tr__rpc_damaged("a list's tensor is missing");
        TR__TRY(tr_list_add(list, name, x));
    }
    TR__TRY(read_metadata(r, list));
    *out = list;
    return tr_status_of(list);
}

static tr_status read_rref(tr__rpc_reader *r, tr_rref **out)
{
    *out = NULL;
    if (!read_u8(r)) return r->bad ? tr__rpc_damaged("a reference is missing") : TR_OK;
    const unsigned char *token = take(r, 40);
    if (!token) return tr__rpc_damaged("a reference is cut short");
    *out = r->take_in(r->user, token);
    return tr_status_of(*out);
}

tr_status tr__rpc_read_value(tr__rpc_reader *r, tr_value *v)
{
    *v = tr_value_none();
    v->kind = (tr_value_kind)read_u8(r);
    tr_status status = TR_OK;
    switch (v->kind) {
    case TR_VALUE_NONE: break;
    case TR_VALUE_TENSOR: status = read_tensor(r, &v->tensor); break;
    case TR_VALUE_I64: v->i64 = (int64_t)read_u64(r); break;
    case TR_VALUE_F64: {
        uint64_t bits = read_u64(r);
        memcpy(&v->f64, &bits, sizeof bits);
        break;
    }
    case TR_VALUE_STRING: status = read_string(r, &v->string); break;
    case TR_VALUE_BYTES: status = read_optional_bytes(r, &v->bytes); break;
    case TR_VALUE_RREF: status = read_rref(r, &v->rref); break;
    case TR_VALUE_TENSORS: status = read_tensors(r, &v->tensors); break;
    case TR_VALUE_OBJECT:
    case TR_VALUE_COUNT:
    default: return tr__rpc_damaged("a value of unknown kind");
    }
    if (status == TR_OK && r->bad) status = tr__rpc_damaged("a value is cut short");
    return status;
}
