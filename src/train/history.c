#include "train/history.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Each column is of 8 bytes. One that is not whole may be NaN: not measured. */
static const struct column {
    const char *name;
    size_t offset; /* in a tr_metrics_row */
    bool whole;    /* int64_t, else double */
    double least, most;
} columns[] = {
    {"step", offsetof(tr_metrics_row, step), true, 0, 0x1p53},
    {"items", offsetof(tr_metrics_row, items), true, 0, 0x1p63},
    {"lr", offsetof(tr_metrics_row, lr), false, 0, INFINITY},
    {"loss", offsetof(tr_metrics_row, loss), false, -INFINITY, INFINITY},
    {"validation_loss", offsetof(tr_metrics_row, validation_loss), false, -INFINITY, INFINITY},
    {"items_per_s", offsetof(tr_metrics_row, items_per_s), false, 0, INFINITY},
    {"grad_norm", offsetof(tr_metrics_row, grad_norm), false, 0, INFINITY},
    {"seconds", offsetof(tr_metrics_row, seconds), false, 0, TR__MOST_SECONDS},
    {"validation_accuracy", offsetof(tr_metrics_row, validation_accuracy), false, 0, 1},
};
enum { COLUMNS = sizeof columns / sizeof *columns };
_Static_assert(COLUMNS * 8 == sizeof(tr_metrics_row), "each field of a row is a column");

tr_status tr__row_check(const tr_metrics_row *row, int64_t before)
{
    if (row->step <= before)
        return tr__fail(TR_INVALID, "metrics: a row of step %" PRId64 " after one of step %" PRId64, row->step, before);
    for (int k = 0; k < COLUMNS; k++) {
        const struct column *c = &columns[k];
        const char *field = (const char *)row + c->offset;
        double value = c->whole ? (double)*(const int64_t *)field : *(const double *)field;
        if ((value >= c->least && value <= c->most) || (isnan(value) && !c->whole)) continue;
        return tr__fail(TR_INVALID, "metrics: step %" PRId64 ": %s is %g, not from %g to %g%s", row->step, c->name,
                        value, c->least, c->most, c->whole ? "" : ", nor NaN (not measured)");
    }
    return TR_OK;
}

static tr_tensor *column_of(const struct column *c, const tr_metrics_row *rows, int64_t count)
{
    tr_tensor *t = tr_empty(TR_SHAPE(count), .dtype = c->whole ? TR_I64 : TR_F64);
    char *to = tr_status_of(t) == TR_OK ? tr_data(t) : NULL;
    for (int64_t i = 0; to && i < count; i++) memcpy(to + 8 * i, (const char *)&rows[i] + c->offset, 8);
    return t;
}

tr_tensor_list *tr__history_list(const tr_metrics_row *rows, int64_t count)
{
    tr_tensor_list *list = tr_list_new();
    TR_SCOPE;
    for (int k = 0; k < COLUMNS; k++)
        if (tr_list_add(list, columns[k].name, column_of(&columns[k], rows, count)) != TR_OK) tr__object_break(list);
    return list;
}

/* Writes column c of a list into rows. */
static tr_status take_column(const tr_tensor_list *list, const struct column *c, tr_metrics_row *rows, int64_t count)
{
    const tr_tensor *t = tr_list_find(list, c->name);
    tr_dtype dtype = c->whole ? TR_I64 : TR_F64;
    if (!t) return tr__fail(TR_FORMAT, "the history of the training has no column \"%s\"", c->name);
    if (tr_dtype_of(t) != dtype || tr_ndim(t) != 1 || tr_size(t, 0) != count)
        return tr__fail(TR_FORMAT, "the history of the training: column \"%s\" is %s of %s, not [%" PRId64 "] of %s",
                        c->name, tr_shape_text(tr_shape_of(t), (char[160]){0}), tr_dtype_name(tr_dtype_of(t)), count,
                        tr_dtype_name(dtype));
    const char *from = tr_data(t);
    for (int64_t i = 0; i < count; i++) memcpy((char *)&rows[i] + c->offset, from + 8 * i, 8);
    return TR_OK;
}

tr_status tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count)
{
    TR__TRY(tr_status_of(list));
    const tr_tensor *first = tr_list_find(list, columns[0].name);
    int64_t n = first ? tr_numel(first) : 0, before = -1;
    tr_metrics_row *made = calloc((size_t)n + 1, sizeof *made);
    if (!made) return tr__fail(TR_NO_MEMORY, "no memory for a history of %" PRId64 " rows", n);
    tr_status status = TR_OK;
    for (int k = 0; k < COLUMNS && status == TR_OK; k++) status = take_column(list, &columns[k], made, n);
    for (int64_t i = 0; i < n && status == TR_OK; before = made[i++].step)
        if (tr__row_check(&made[i], before) != TR_OK)
            status = tr__fail_context(TR_FORMAT, "the history of the training");
    if (status != TR_OK) {
        free(made);
        return status;
    }
    *rows = made;
    *count = n;
    return TR_OK;
}
