#include "comm/collective.h"

#include "base/copy.h"
#include "base/given.h"
#include "base/hash.h"
#include "base/object.h"
#include "comm/algo/reduce.h"
#include "comm/control.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const reduce_ops[TR_REDUCE_OP_COUNT] = {
#define ROW(name, text) [TR_##name] = text,
    TR_REDUCE_OP_MAP(ROW)
#undef ROW
};

/* ---- Who gives and gets what --------------------------------------------------------------------------------------- */

bool tr__collective_gives(const tr_collective *c, int rank)
{
    if (c->kind == TR_BARRIER || c->kind == TR_RECV) return false;
    return !tr__kind_of(c->kind)->from_root || c->root == rank;
}

bool tr__collective_gets(const tr_collective *c, int rank)
{
    if (c->kind == TR_BARRIER || c->kind == TR_SEND) return false;
    return !tr__kind_of(c->kind)->to_root || c->root == rank;
}

static tr__range block(const int64_t *counts, const int64_t *offsets, bool in_blocks, int64_t count, int rank)
{
    if (counts) return (tr__range){offsets[rank], offsets[rank] + counts[rank]};
    int64_t begin = in_blocks ? count * rank : 0;
    return (tr__range){begin, begin + count};
}

tr__range tr__collective_in(const tr_collective *c, int to)
{
    return block(c->in_counts, c->in_offsets, tr__kind_of(c->kind)->in_blocks, c->count, to);
}

tr__range tr__collective_out(const tr_collective *c, int from)
{
    return block(c->out_counts, c->out_offsets, tr__kind_of(c->kind)->out_blocks, c->count, from);
}

int64_t tr__collective_extent(const tr_collective *c, int world_size, bool out)
{
    int64_t end = 0;
    for (int rank = 0; rank < world_size; rank++) {
        tr__range b = out ? tr__collective_out(c, rank) : tr__collective_in(c, rank);
        if (tr__length(b) > 0 && b.end > end) end = b.end;
    }
    return end;
}

/* ---- Checking numbers -------------------------------------------------------------------------------------------- */

/* What is being checked: the caller's rank and world beside its call. */
typedef struct reading {
    tr_collective *c;
    const tr__kind *kind;
    const char *name;
    int rank, world;
} reading;

static tr_status check_count(const reading *r)
{
    const tr_collective *c = r->c;
    if ((unsigned)c->dtype >= TR_DTYPE_COUNT)
        return tr__fail(TR_INVALID, "%s: %d is no dtype; TR_F32 is the first, TR_BOOL the last", r->name,
            (int)c->dtype);
    int64_t size = (int64_t)tr_dtype_size(c->dtype), bytes;
    if (r->kind->in_blocks || r->kind->out_blocks) size *= r->world;
    if (c->count < 0 || __builtin_mul_overflow(c->count, size, &bytes))
        return tr__fail(TR_INVALID, "%s: a count of %" PRId64 " is not in 0 … %" PRId64, r->name, c->count,
            INT64_MAX / size);
    return TR_OK;
}

static tr_status check_op(const reading *r)
{
    const tr_collective *c = r->c;
    if ((unsigned)c->op >= TR_REDUCE_OP_COUNT)
        return tr__fail(TR_INVALID, "%s: %d is no operation; TR_SUM is the first, TR_BXOR the last", r->name,
            (int)c->op);
    if (tr__reduce_find(c->dtype, c->op)) return TR_OK;
    const char *hint = c->dtype == TR_BOOL ? "use TR_MAX (any) or TR_MIN (all)" : "bits are for integers and bool";
    return tr__fail(TR_DTYPE, "%s: there is no %s of %s; %s", r->name, reduce_ops[c->op], tr_dtype_name(c->dtype),
        hint);
}

/* The fields that name ranks; those without meaning become zero. */
static tr_status check_ranks(const reading *r)
{
    tr_collective *c = r->c;
    if (!r->kind->from_root && !r->kind->to_root) c->root = 0;
    if (c->root < 0 || c->root >= r->world)
        return tr__fail(TR_INVALID, "%s: root %d is not a rank of this group, 0 … %d", r->name, c->root, r->world - 1);
    if (!r->kind->point_to_point) {
        c->peer = 0;
        if (c->tag > 0) c->tag = 0; /* below it is tr__bucket_tag()'s */
    }
    if (c->kind != TR_RECV) c->source = NULL;
    bool any = c->kind == TR_RECV && c->peer == TR_ANY_SOURCE;
    if (any && r->world == 1)
        return tr__fail(TR_INVALID, "recv: in a group of one rank there is no other to receive from");
    if (!any && (c->peer < 0 || c->peer >= r->world))
        return tr__fail(TR_INVALID, "%s: peer %d is not a rank of this group, 0 … %d", r->name, c->peer, r->world - 1);
    if (r->kind->point_to_point && c->peer == r->rank)
        return tr__fail(TR_INVALID, "%s: peer %d is this rank itself", r->name, c->peer);
    if (r->kind->point_to_point && c->tag < 0)
        return tr__fail(TR_INVALID, "%s: a tag of %d is negative", r->name, c->tag);
    return TR_OK;
}

/* ---- Arrays of the _V kinds -------------------------------------------------------------------------------------- */

/* Copies counts and offsets of one side to places[0 … 2 * world - 1], where offsets that were not given are made. */
static tr_status read_blocks(const reading *r, const char *side, const int64_t **counts, const int64_t **offsets,
    int64_t *places)
{
    if (!*counts)
        return tr__fail(TR_INVALID, "%s: .%s_counts is needed, the elements for each of %d ranks", r->name, side,
            r->world);
    int64_t size = (int64_t)tr_dtype_size(r->c->dtype), at = 0, *own_offsets = places + r->world;
    for (int rank = 0; rank < r->world; rank++) {
        int64_t count = (*counts)[rank], offset = *offsets ? (*offsets)[rank] : at, end, bytes;
        if (count < 0 || offset < 0 || __builtin_add_overflow(offset, count, &end) ||
            __builtin_mul_overflow(end, size, &bytes))
            return tr__fail(TR_INVALID, "%s: .%s_counts[%d] = %" PRId64 " elements at offset %" PRId64
                " are no place in memory", r->name, side, rank, count, offset);
        places[rank] = count;
        own_offsets[rank] = offset;
        at = end;
    }
    *counts = places;
    *offsets = own_offsets;
    return TR_OK;
}

static tr_status read_both_sides(const reading *r, bool in, bool out, int64_t *places)
{
    tr_collective *c = r->c;
    if (in) TR__TRY(read_blocks(r, "in", &c->in_counts, &c->in_offsets, places));
    if (out) TR__TRY(read_blocks(r, "out", &c->out_counts, &c->out_offsets, places + 2 * r->world));
    if (in && out) {
        c->count = 0;
        for (int rank = 0; rank < r->world; rank++) c->count += c->in_counts[rank];
        int64_t give = c->in_counts[r->rank], get = c->out_counts[r->rank];
        if (give == get) return TR_OK;
        return tr__fail(TR_INVALID, "%s: rank %d gives itself %" PRId64 " elements, and expects %" PRId64, r->name,
            r->rank, give, get);
    }
    int64_t own = in ? c->in_counts[r->rank] : c->out_counts[r->rank];
    if (own == c->count) return TR_OK;
    return tr__fail(TR_INVALID, "%s: rank %d's count is %" PRId64 ", but .%s_counts[%d] is %" PRId64, r->name, r->rank,
        c->count, in ? "in" : "out", r->rank, own);
}

static tr_status read_arrays(const reading *r, int64_t **arrays)
{
    tr_collective *c = r->c;
    bool in = r->kind->variable && r->kind->in_blocks && tr__collective_gives(c, r->rank);
    bool out = r->kind->variable && r->kind->out_blocks && tr__collective_gets(c, r->rank);
    if (!r->kind->variable && (c->in_counts || c->in_offsets || c->out_counts || c->out_offsets))
        return tr__fail(TR_INVALID, "%s: all ranks give as many elements, .count; counts and offsets for each are those of "
            "all_gather_v, gather_v, scatter_v and all_to_all_v", r->name);
    if (!in) c->in_counts = c->in_offsets = NULL;
    if (!out) c->out_counts = c->out_offsets = NULL;
    if (!in && !out) return TR_OK;
    int64_t *places = malloc(4 * (size_t)r->world * sizeof *places);
    if (!places) return tr__fail(TR_NO_MEMORY, "%s: no memory for the counts of %d ranks", r->name, r->world);
    tr_status status = read_both_sides(r, in, out, places);
    if (status == TR_OK)
        *arrays = places;
    else
        free(places);
    return status;
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

/* Of a rank that gives and gets: where one buffer may lie in the other, *inner; its address, or NULL. */
static void *own_place(const reading *r, void ***inner)
{
    tr_collective *c = r->c;
    size_t size = tr_dtype_size(c->dtype);
    bool in_out = r->kind->in_blocks && !r->kind->out_blocks; /* scatter, reduce_scatter */
    *inner = in_out ? &c->out : (void **)&c->in;
    if (c->kind == TR_ALL_TO_ALL_V) return NULL;
    if (in_out) return c->in ? (char *)c->in + (size_t)tr__collective_in(c, r->rank).begin * size : NULL;
    bool out_in = r->kind->out_blocks && !r->kind->in_blocks;
    return c->out && out_in ? (char *)c->out + (size_t)tr__collective_out(c, r->rank).begin * size : c->out;
}

static tr_status check_buffers(const reading *r)
{
    tr_collective *c = r->c;
    bool gives = tr__collective_gives(c, r->rank), gets = tr__collective_gets(c, r->rank);
    if (!gives) c->in = NULL;
    if (!gets && !c->in) c->in = c->out; /* the one buffer that was given, of a reduce, say */
    if (!gets) c->out = NULL;
    void **inner = NULL, *place = gives && gets ? own_place(r, &inner) : NULL;
    if (inner && !*inner && c->kind != TR_REDUCE_SCATTER) *inner = place;
    int64_t in = gives ? tr__collective_extent(c, r->world, false) : 0, out = gets ? tr__collective_extent(c, r->world, true) : 0;
    if ((in > 0 && !c->in) || (out > 0 && !c->out))
        return tr__fail(TR_INVALID, "%s: the buffer of %" PRId64 " elements is NULL", r->name,
            in > 0 && !c->in ? in : out);
    size_t size = tr_dtype_size(c->dtype);
    if (inner && *inner != place && overlap(c->in, (size_t)in * size, c->out, (size_t)out * size))
        return tr__fail(TR_INVALID, "%s: .in and .out overlap; in place, they must be the same elements", r->name);
    return TR_OK;
}

static tr_status check(const reading *r, int64_t **arrays)
{
    tr_collective *c = r->c;
    if (c->kind == TR_BARRIER) {
        c->in = c->out = NULL;
        c->count = 0;
        c->dtype = 0;
    }
    TR__TRY(check_count(r));
    TR__TRY(check_ranks(r));
    if (r->kind->reduces)
        TR__TRY(check_op(r));
    else
        c->op = 0;
    /* What the caller's macro saw of the buffers' types. */
    TR__TRY(tr__element_check(r->name, c->in_element, c->dtype, c->dtype == TR_F32, "write .dtype ="));
    TR__TRY(tr__element_check(r->name, c->out_element, c->dtype, c->dtype == TR_F32, "write .dtype ="));
    TR__TRY(read_arrays(r, arrays));
    return check_buffers(r);
}

tr_status tr__collective_read(const tr_collective *given, int rank, int world_size, int timeout_ms,
    tr_collective *full, int64_t **arrays)
{
    *arrays = NULL;
    if (!given) return tr__fail(TR_INVALID, "a collective is needed, not NULL");
    *full = (tr_collective){0};
    memcpy(full, given, given->size < sizeof *full ? given->size : sizeof *full);
    full->size = sizeof *full;
    if ((unsigned)full->kind >= TR_COLLECTIVE_COUNT)
        return tr__fail(TR_UNSUPPORTED, "this library has no collective of kind %d", (int)full->kind);
    reading r = {full, tr__kind_of(full->kind), tr__kind_name(full->kind), rank, world_size};
    if (full->timeout_ms < 0)
        return tr__fail(TR_INVALID, "%s: a timeout of %d ms is negative", r.name, full->timeout_ms);
    if (full->timeout_ms == 0) full->timeout_ms = timeout_ms;
    tr_status status = check(&r, arrays);
    if (status == TR_OK) return TR_OK;
    free(*arrays);
    *arrays = NULL;
    return status;
}

void tr__collective_keep_own(const tr_collective *c, int rank, bool past_caches)
{
    if (!tr__collective_gives(c, rank) || !tr__collective_gets(c, rank)) return;
    tr__range in = tr__collective_in(c, rank), out = tr__collective_out(c, rank);
    size_t size = tr_dtype_size(c->dtype), bytes = (size_t)tr__length(out) * size;
    if (!bytes) return;
    char *to = (char *)c->out + (size_t)out.begin * size;
    const char *from = (const char *)c->in + (size_t)in.begin * size;
    if (to != from) tr__copy(to, from, bytes, past_caches);
}

/* ---- Signatures -------------------------------------------------------------------------------------------------- */

void tr__signature_of(const tr_collective *c, int world_size, uint64_t sequence, tr__signature *s)
{
    *s = (tr__signature){.sequence = sequence, .kind = c->kind, .dtype = c->dtype, .op = c->op, .root = c->root,
        .peer = c->peer, .tag = c->tag, .count = c->count, .line = c->line};
    if (c->kind == TR_ALL_GATHER_V) s->layout = tr__hash(TR__HASH_BEGIN, c->out_counts, (size_t)world_size * sizeof *c->out_counts);
    strcpy(s->file, tr__place_text(c->file, sizeof s->file));
}

bool tr__signature_agrees(const tr__signature *a, const tr__signature *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root && a->tag == b->tag &&
           a->layout == b->layout && (a->count == b->count || tr__kind_of(a->kind)->variable);
}

const char *tr__place_text(const char *file, size_t room)
{
    if (!file) return "";
    size_t length = strlen(file);
    if (length < room) return file;
    const char *end = file + length - (room - 1), *slash = strchr(end, '/');
    return slash ? slash + 1 : end;
}

/* "sum of f32[4] to rank 1"; "" for a barrier. */
static void describe(const tr__signature *s, char *text, size_t bytes)
{
    const tr__kind *kind = tr__kind_of(s->kind);
    text[0] = 0;
    if (s->kind == TR_BARRIER) return;
    int used = 0;
    if (kind->reduces) used = snprintf(text, bytes, "%s of ", reduce_ops[s->op]);
    used += snprintf(text + used, bytes - (size_t)used, "%s[%" PRId64 "]", tr_dtype_name(s->dtype), s->count);
    text += used;
    bytes -= (size_t)used;
    if (kind->from_root) snprintf(text, bytes, " from rank %d", s->root);
    if (kind->to_root) snprintf(text, bytes, " to rank %d", s->root);
    if (kind->point_to_point && s->peer == TR_ANY_SOURCE)
        snprintf(text, bytes, " from any rank, tag %d", s->tag);
    else if (kind->point_to_point)
        snprintf(text, bytes, " %s rank %d, tag %d", s->kind == TR_SEND ? "to" : "from", s->peer, s->tag);
    else if (s->tag < 0) {
        int number = -(s->tag + 1), variant = number / TR__BUCKETS / TR__BUCKETS;
        used = snprintf(text, bytes, ", bucket %d of module %d", number % TR__BUCKETS, number / TR__BUCKETS % TR__BUCKETS);
        if (variant) snprintf(text + used, bytes - (size_t)used, ", frozen set %d", variant);
    }
}

char *tr__signature_text(const tr__signature *s, char text[TR__CALL_TEXT])
{
    char place[TR__PLACE_TEXT + 20] = "", what[80];
    if ((int)s->kind == TR__REMOTE_WAIT) {
        snprintf(text, TR__CALL_TEXT, "%s", s->file);
        return text;
    }
    if (s->file[0]) snprintf(place, sizeof place, "at %s:%d", s->file, s->line);
    describe(s, what, sizeof what);
    int used = snprintf(text, TR__CALL_TEXT, "%s", tr__kind_name(s->kind));
    if (s->sequence) used += snprintf(text + used, TR__CALL_TEXT - (size_t)used, " #%" PRIu64, s->sequence);
    const char *gap = what[0] && place[0] ? " " : "";
    if (what[0] || place[0]) snprintf(text + used, TR__CALL_TEXT - (size_t)used, " (%s%s%s)", what, gap, place);
    return text;
}

char *tr__collective_text(const tr_collective *c, int world_size, uint64_t sequence, char text[TR__CALL_TEXT])
{
    tr__signature signature;
    tr__signature_of(c, world_size, sequence, &signature);
    return tr__signature_text(&signature, text);
}

/* Whoever reads may find out by a mark before or behind all this that it has changed: so nothing passes these stores and loads. */
#define PUT(word, value) atomic_store_explicit(&(word), (value), memory_order_release)
#define GET(word) atomic_load_explicit(&(word), memory_order_acquire)

void tr__call_write(tr__call_words *w, _Atomic uint64_t *file, size_t file_bytes, const tr_collective *c, uint32_t flags)
{
    PUT(w->what, (uint32_t)c->kind | (uint32_t)c->dtype << 8 | (uint32_t)c->op << 16 | flags);
    PUT(w->rank, tr__kind_of(c->kind)->point_to_point ? c->peer : c->root);
    PUT(w->tag, c->tag);
    PUT(w->line, c->line);
    PUT(w->count, c->count);
    uint64_t text[TR__PLACE_TEXT / 8] = {0};
    const char *place = tr__place_text(c->file, file_bytes);
    size_t used = strlen(place);
    memcpy(text, place, used);
    for (size_t i = 0; i <= used / 8; i++) PUT(file[i], text[i]); /* to its end: what is behind that is not looked at */
}

tr__signature tr__call_read(const tr__call_words *w, const _Atomic uint64_t *file, size_t file_bytes)
{
    uint32_t what = GET(w->what);
    uint64_t text[TR__PLACE_TEXT / 8];
    for (size_t i = 0; i < file_bytes / 8; i++) text[i] = GET(file[i]);
    tr__signature s = {.kind = what & 0xff, .dtype = what >> 8 & 0xff, .op = what >> 16 & 0xff, .tag = GET(w->tag),
        .line = GET(w->line), .count = GET(w->count)};
    s.root = s.peer = GET(w->rank);
    memcpy(s.file, text, file_bytes);
    s.file[file_bytes - 1] = 0;
    return s;
}

tr_status tr__call_mismatch(const char *group, int of_a, const tr__signature *a, int of_b, const tr__signature *b)
{
    char call_a[TR__CALL_TEXT], call_b[TR__CALL_TEXT];
    const char *counts = a->kind == b->kind && a->layout != b->layout ? " whose .out_counts differ" : "";
    return tr__fail(TR_MISMATCH, "group '%s': the ranks made different calls%s: rank %d %s, rank %d %s", group, counts,
        of_a, tr__signature_text(a, call_a), of_b, tr__signature_text(b, call_b));
}

tr_status tr__block_mismatch(const char *group, int giver, const tr__signature *give, int64_t given, int getter,
    const tr__signature *get, int64_t expected)
{
    char give_text[TR__CALL_TEXT], get_text[TR__CALL_TEXT];
    return tr__fail(TR_MISMATCH, "group '%s': rank %d gives %" PRId64 " elements where rank %d expects %" PRId64
        ": rank %d %s, rank %d %s", group, giver, given, getter, expected, giver,
        tr__signature_text(give, give_text), getter, tr__signature_text(get, get_text));
}
