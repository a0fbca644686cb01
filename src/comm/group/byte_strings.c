/* Byte strings of any length, sent between ranks that do not know how long the others' are. */
#include "base/object.h"
#include "comm/control.h"

#include <stdlib.h>

static tr_status check_place(const char *function, bool there, const char *which)
{
    return there ? TR_OK : tr__fail(TR_INVALID, "%s: %s is NULL", function, which);
}

/* bytes + 1, of which the last is 0, so that a text is one. Without them the group breaks: the others send the bytes now. */
static tr_status allocate(tr_group *group, size_t bytes, char **memory)
{
    *memory = malloc(bytes + 1);
    if (*memory) {
        (*memory)[bytes] = 0;
        return TR_OK;
    }
    tr__fail(TR_NO_MEMORY, "no memory for %zu bytes of other ranks", bytes);
    tr__group_give_up(group);
    return TR_NO_MEMORY;
}

tr_status tr_all_gather_bytes_at(tr_group *group, const void *data, size_t bytes, void **all, int64_t *sizes,
    const char *file, int line)
{
    TR__TRY(check_place("tr_all_gather_bytes", all && sizes, "where the bytes or their sizes are to go"));
    *all = NULL;
    TR__TRY(check_place("tr_all_gather_bytes", data || !bytes, "the data"));
    int64_t own = (int64_t)bytes;
    tr_collective c = {.size = sizeof c, .kind = TR_ALL_GATHER, .in = &own, .out = sizes, .count = 1, .dtype = TR_I64,
        .file = file, .line = line};
    TR__TRY(tr_run_collective(group, &c));
    size_t total = 0;
    for (int rank = 0; rank < tr_world_size(group); rank++) total += (size_t)sizes[rank];
    char *memory;
    TR__TRY(allocate(group, total, &memory));
    /* NULL would mean that the data is in its place already. */
    c = (tr_collective){.size = sizeof c, .kind = TR_ALL_GATHER_V, .in = data ? data : "", .out = memory,
        .count = sizes[tr_rank(group)], .dtype = TR_U8, .out_counts = sizes, .file = file, .line = line};
    tr_status status = tr_run_collective(group, &c);
    if (status == TR_OK)
        *all = memory;
    else
        free(memory);
    return status;
}

tr_status tr_broadcast_bytes_at(tr_group *group, void **data, size_t *bytes, int root, const char *file, int line)
{
    bool gives = tr_rank(group) == root;
    TR__TRY(check_place("tr_broadcast_bytes", data && bytes, "the place of the bytes or of their number"));
    TR__TRY(check_place("tr_broadcast_bytes", !gives || *data || !*bytes, "the root's data"));
    int64_t size = gives ? (int64_t)*bytes : 0;
    tr_collective c = {.size = sizeof c, .kind = TR_BROADCAST, .out = &size, .count = 1, .dtype = TR_I64, .root = root,
        .file = file, .line = line};
    TR__TRY(tr_run_collective(group, &c));
    char *memory = gives ? *data : NULL;
    if (!gives) TR__TRY(allocate(group, (size_t)size, &memory));
    c.out = memory;
    c.count = size;
    c.dtype = TR_U8;
    tr_status status = tr_run_collective(group, &c);
    if (gives) return status;
    if (status != TR_OK) {
        free(memory);
        return status;
    }
    *data = memory;
    *bytes = (size_t)size;
    return TR_OK;
}
