#include "comm/collective.h"

#include "base/object.h"
#include "comm/algo/reduce.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[TR_COLLECTIVE_COUNT] = {
    [TR_ALL_REDUCE] = "all_reduce",
    [TR_BROADCAST] = "broadcast",
    [TR_BARRIER] = "barrier",
};

static const char *const reduce_ops[TR_REDUCE_OP_COUNT] = {
#define ROW(name, text) [TR_##name] = text,
    TR_REDUCE_OP_MAP(ROW)
#undef ROW
};

static tr_status check_data(const tr_collective *c)
{
    const char *kind = kinds[c->kind];
    if ((unsigned)c->dtype >= TR_DTYPE_COUNT)
        return tr__fail(TR_INVALID, "%s: %d is no dtype; TR_F32 is the first, TR_BOOL the last", kind, (int)c->dtype);
    int64_t size = (int64_t)tr_dtype_size(c->dtype), bytes;
    if (c->count < 0 || __builtin_mul_overflow(c->count, size, &bytes))
        return tr__fail(TR_INVALID, "%s: a count of %" PRId64 " is not in 0 … %" PRId64, kind, c->count,
            INT64_MAX / size);
    if (c->count > 0 && !c->out)
        return tr__fail(TR_INVALID, "%s: the buffer of %" PRId64 " elements is NULL", kind, c->count);
    return TR_OK;
}

static tr_status check_op(const tr_collective *c)
{
    if ((unsigned)c->op >= TR_REDUCE_OP_COUNT)
        return tr__fail(TR_INVALID, "all_reduce: %d is no operation; TR_SUM is the first, TR_PROD the last",
                        (int)c->op);
    if (!tr__reduce_find(c->dtype, c->op))
        return tr__fail(TR_DTYPE, "all_reduce: there is no %s of %s; use TR_MAX (any) or TR_MIN (all)",
                        reduce_ops[c->op], tr_dtype_name(c->dtype));
    return TR_OK;
}

tr_status tr__collective_read(const tr_collective *given, int world_size, int timeout_ms, tr_collective *full)
{
    if (!given) return tr__fail(TR_INVALID, "a collective is needed, not NULL");
    *full = (tr_collective){0};
    memcpy(full, given, given->size < sizeof *full ? given->size : sizeof *full);
    full->size = sizeof *full;
    if ((unsigned)full->kind >= TR_COLLECTIVE_COUNT)
        return tr__fail(TR_UNSUPPORTED, "this library has no collective of kind %d", (int)full->kind);
    if (full->timeout_ms < 0)
        return tr__fail(TR_INVALID, "%s: a timeout of %d ms is negative", kinds[full->kind], full->timeout_ms);
    if (full->timeout_ms == 0) full->timeout_ms = timeout_ms;
    if (full->kind == TR_BARRIER) {
        full->in = full->out = NULL;
        full->count = 0;
        full->dtype = 0;
    }
    TR__TRY(check_data(full));
    if (full->kind == TR_ALL_REDUCE)
        TR__TRY(check_op(full));
    else
        full->op = 0;
    if (full->kind != TR_BROADCAST) full->root = 0;
    if (full->root < 0 || full->root >= world_size)
        return tr__fail(TR_INVALID, "broadcast: root %d is not a rank of this group, 0 … %d", full->root,
                        world_size - 1);
    if (!full->in) full->in = full->out;
    return TR_OK;
}

const char *tr__place_text(const char *file)
{
    if (!file) return "";
    size_t length = strlen(file);
    if (length < TR__PLACE_TEXT) return file;
    const char *end = file + length - (TR__PLACE_TEXT - 1), *slash = strchr(end, '/');
    return slash ? slash + 1 : end;
}

char *tr__signature_text(const tr__signature *s, char text[TR__CALL_TEXT])
{
    char place[TR__PLACE_TEXT + 20] = "", what[64] = "";
    if (s->file[0]) snprintf(place, sizeof place, "at %s:%d", s->file, s->line);
    if (s->kind == TR_ALL_REDUCE)
        snprintf(what, sizeof what, "%s of %s[%" PRId64 "]", reduce_ops[s->op], tr_dtype_name(s->dtype), s->count);
    else if (s->kind == TR_BROADCAST)
        snprintf(what, sizeof what, "%s[%" PRId64 "] from rank %d", tr_dtype_name(s->dtype), s->count, s->root);
    const char *gap = what[0] && place[0] ? " " : "";
    snprintf(text, TR__CALL_TEXT, "%s #%" PRIu64, kinds[s->kind], s->sequence);
    if (what[0] || place[0]) {
        size_t used = strlen(text);
        snprintf(text + used, TR__CALL_TEXT - used, " (%s%s%s)", what, gap, place);
    }
    return text;
}
