/*
 * Rows of metrics, in memory, and in a CSV file for people and their tools. The file is written, never read: what a
 * resumed training has behind it comes from its checkpoint, whose checksums cover it.
 */
#include "train/metrics.h"

#include "base/c_locale.h"
#include "base/memory.h"
#include "train/checkpoint.h"
#include "train/history.h"
#include "train/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMBER = 340, LINE = 9 * NUMBER }; /* bytes that a number and a row take at most: 1e308 has 309 digits */

struct tr_metrics {
    tr__object object;
    tr_metrics_row *rows;
    int64_t count;
    size_t room; /* for rows */
    char *path; /* NULL: no file */
    char header[160];
    bool accuracy; /* the file has that column */
    int fd;        /* plus one, so that a zeroed object has none */
};

static void destroy(void *self)
{
    tr_metrics *m = self;
    tr__metrics_close_file(m);
    free(m->rows);
}

static const tr__type metrics_type = {"metrics", sizeof(tr_metrics), destroy};

tr_metrics *tr__metrics_new(void)
{
    return tr__object_new(&metrics_type);
}

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static int put_number(char to[NUMBER], const char *format, double value, char end)
{
    int n = isnan(value) ? 0 : snprintf(to, NUMBER, format, value);
    to[n] = end;
    return n + 1;
}

/* Losses and norms are f32 at heart: nine digits hold them exactly, so that runs can be compared by their files.
 * Returns the length. */
static size_t format_row(const tr_metrics *m, const tr_metrics_row *row, char line[LINE])
{
    int n = snprintf(line, LINE, "%" PRId64 ",%" PRId64 ",", row->step, row->items);
    n += put_number(line + n, "%.9g", row->lr, ',');
    n += put_number(line + n, "%.9g", row->loss, ',');
    n += put_number(line + n, "%.9g", row->validation_loss, ',');
    n += put_number(line + n, "%.1f", row->items_per_s, ',');
    n += put_number(line + n, "%.9g", row->grad_norm, ',');
    n += put_number(line + n, "%.3f", row->seconds, m->accuracy ? ',' : '\n');
    if (m->accuracy) n += put_number(line + n, "%.9g", row->validation_accuracy, '\n');
    return (size_t)n;
}

static tr_status append(tr_metrics *m, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t put = write(m->fd - 1, text, bytes);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return tr__fail_errno(TR_IO, put < 0 ? errno : EIO, "cannot write %s", m->path);
        text += put;
        bytes -= (size_t)put;
    }
    return TR_OK;
}

static tr_status replace_file(tr_metrics *m, const char *text, size_t length)
{
    TR__TRY(tr_write_file(m->path, text, length));
    if (m->fd) close(m->fd - 1);
    m->fd = open(m->path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC) + 1;
    return m->fd ? TR_OK : tr__fail_errno(TR_IO, errno, "cannot open %s", m->path);
}

/* Puts a file with all rows in place of what is there. */
static tr_status write_all(tr_metrics *m)
{
    TR__C_NUMBERS;
    char *text = NULL, line[LINE];
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);
    if (!to) return tr__fail(TR_NO_MEMORY, "no memory to write %s", m->path);
    fputs(m->header, to);
    for (int64_t i = 0; i < m->count; i++) fwrite(line, 1, format_row(m, &m->rows[i], line), to);
    bool lost = ferror(to);
    tr_status status = fclose(to) != 0 || lost ? tr__fail(TR_NO_MEMORY, "no memory to write %s", m->path)
                                               : replace_file(m, text, length);
    free(text);
    return status;
}

/* Metrics that begin anew replace metrics, whole or cut short, but not what somebody else calls so. */
static tr_status check_replaced(const tr_metrics *m)
{
    tr__plain_file file;
    tr_status status = tr__plain_open(&file, m->path, "a metrics file");
    if (status == TR_NOT_FOUND) return TR_OK;
    if (status != TR_OK) return status;
    char head[sizeof m->header];
    size_t length = strlen(m->header);
    if (file.bytes < length) length = (size_t)file.bytes;
    status = tr__plain_read(&file, 0, head, length);
    tr__plain_close(&file);
    if (status != TR_OK || memcmp(head, m->header, length) == 0) return status;
    return tr__fail(TR_FORMAT, "%s is no metrics file: its first line should be \"%.*s\"", m->path,
                    (int)strlen(m->header) - 1, m->header);
}

tr_status tr__metrics_open_file(tr_metrics *m, const char *path, const char *item, bool accuracy)
{
    TR__TRY(tr_status_of(m));
    if (!item) item = "token";
    if (strlen(item) > 20) return tr__fail(TR_INVALID, "metrics: the item \"%s\" has more than 20 letters", item);
    tr__metrics_close_file(m);
    m->accuracy = accuracy;
    snprintf(m->header, sizeof m->header, "step,%ss,lr,loss,validation_loss,%ss_per_s,grad_norm,seconds%s\n", item,
             item, accuracy ? ",validation_accuracy" : "");
    m->path = strdup(path);
    if (!m->path) return tr__fail(TR_NO_MEMORY, "out of memory");
    if (!m->count) TR__TRY(check_replaced(m));
    return write_all(m);
}

void tr__metrics_close_file(tr_metrics *m)
{
    if (m->fd) close(m->fd - 1);
    free(m->path);
    m->fd = 0;
    m->path = NULL;
}

/* Does the path lead to the file that rows are added to? */
static bool is_in_place(const tr_metrics *m)
{
    struct stat ours, there;
    return m->fd && fstat(m->fd - 1, &ours) == 0 && stat(m->path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

tr_status tr_metrics_sync(tr_metrics *m)
{
    if (!m) return tr__fail(TR_INVALID, "metrics_sync: the metrics are NULL");
    TR__TRY(tr_status_of(m));
    if (!m->path) return TR_OK;
    if (!is_in_place(m)) return write_all(m);
    return fsync(m->fd - 1) == 0 ? TR_OK : tr__fail_errno(TR_IO, errno, "cannot write %s", m->path);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

tr_status tr_metrics_add(tr_metrics *m, const tr_metrics_row *row)
{
    if (!m || !row) return tr__fail(TR_INVALID, "metrics_add: %s NULL", m ? "the row is" : "the metrics are");
    TR__TRY(tr_status_of(m));
    TR__TRY(tr__row_check(row, m->count ? m->rows[m->count - 1].step : -1));
    if (!tr__grow(&m->rows, (size_t)m->count, &m->room, sizeof *m->rows))
        return tr__fail(TR_NO_MEMORY, "no memory for %" PRId64 " rows of metrics", m->count + 1);
    m->rows[m->count++] = *row;
    if (!m->path) return TR_OK;
    if (!m->fd) return write_all(m);
    TR__C_NUMBERS;
    char line[LINE];
    tr_status status = append(m, line, format_row(m, row, line));
    if (status == TR_OK) return TR_OK;
    close(m->fd - 1); /* a part of the line may be there: the next row, or a sync, writes all anew */
    m->fd = 0;
    return status;
}

const tr_metrics_row *tr_metrics_rows(const tr_metrics *m, int64_t *count)
{
    if (count) *count = m ? m->count : 0;
    return m ? m->rows : NULL;
}

tr_status tr__metrics_set_score(tr_metrics *m, int64_t step, const tr_score *score)
{
    TR__TRY(tr_status_of(m));
    tr_metrics_row *last = m->count ? &m->rows[m->count - 1] : NULL;
    if (!last || last->step != step) return TR_OK;
    last->validation_loss = score->loss;
    last->validation_accuracy = score->accuracy;
    return m->path ? write_all(m) : TR_OK;
}

tr_status tr__metrics_restore(tr_metrics *m, const tr_tensor_list *history, const char *checkpoint)
{
    TR__TRY(tr_status_of(m));
    tr_metrics_row *rows = NULL;
    int64_t count = 0;
    tr_status status = history ? tr__history_rows(history, &rows, &count) : TR_OK;
    if (status != TR_OK) return tr__fail_context(status, "%s", checkpoint);
    free(m->rows);
    m->rows = rows;
    m->count = count;
    m->room = (size_t)count;
    return m->path ? write_all(m) : TR_OK;
}

tr_metrics *tr_metrics_open_with(const tr_metrics_options *o)
{
    tr_metrics *m = tr__metrics_new();
    tr_status status = tr_status_of(m);
    if (status == TR_OK && !o->path) status = tr__fail(TR_INVALID, "metrics_open: the path is NULL");
    if (status == TR_OK && o->checkpoint) {
        TR_SCOPE;
        tr_tensor_list *model, *history;
        status = tr__checkpoint_load(o->checkpoint, &model, NULL, &history);
        if (status == TR_OK) status = tr__metrics_restore(m, history, o->checkpoint);
    }
    if (status == TR_OK) status = tr__metrics_open_file(m, o->path, o->item, o->accuracy);
    if (status != TR_OK && !tr__error_of(m)) tr__object_break(m);
    return m;
}
