/* Class and row numbers: an i64 or i32 tensor of any strides, read by position in row-major order. */
#ifndef TR_OPS_IDS_H
#define TR_OPS_IDS_H

#include "base/given.h"
#include "ops/rows.h"

/* The class that losses leave out when none is named, as in PyTorch. */
enum { TR__IGNORED_BY_DEFAULT = -100 };

/* The class that a loss's options leave out. */
#define TR__IGNORED(o) ((o)->ignore_index == TR_IGNORE_ZERO ? 0 : TR__OR(o, ignore_index, TR__IGNORED_BY_DEFAULT))

typedef struct tr__ids {
    const void *data;
    bool wide; /* i64 */
    tr__axis axis;
} tr__ids;

tr__ids tr__ids_of(const tr_tensor *ids);

static inline int64_t tr__id(const tr__ids *ids, int64_t position)
{
    int64_t at = tr__axis_at(&ids->axis, position);
    return ids->wide ? ((const int64_t *)ids->data)[at] : ((const int32_t *)ids->data)[at];
}

/* For infer: input i is given, and i64 or i32. */
tr_status tr__ids_input(const tr_op_call *call, int i);

/* Fails, naming the first, when a number is neither in 0 … limit-1 nor skip. what and of are words for the message:
 * "embedding: id", "rows". */
tr_status tr__ids_check(const tr__ids *ids, int64_t limit, const char *what, const char *of, const int64_t *skip);

#endif
