#include "base/object.h"
#include "train/c_locale.h"

#include <trireme/train.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tr_metrics {
    tr__object object;
    char *path;
    char header[160];
    bool accuracy; /* it has that column */
    int fd;
    tr_metrics_row *rows;
    int64_t count, capacity;
};

static void destroy(void *self)
{
    tr_metrics *m = self;
    if (m->fd > 0) close(m->fd - 1);
    free(m->path);
    free(m->rows);
}

/* The descriptor is kept plus one, so that a zeroed object has none. */
static const tr__type metrics_type = {"metrics", sizeof(tr_metrics), destroy};

static tr_status remember(tr_metrics *m, const tr_metrics_row *row)
{
    if (m->count == m->capacity) {
        int64_t capacity = m->capacity ? 2 * m->capacity : 1024;
        tr_metrics_row *rows = realloc(m->rows, (size_t)capacity * sizeof *rows);
        if (!rows) return tr__fail(TR_NO_MEMORY, "%s: no memory for %" PRId64 " rows", m->path, capacity);
        m->rows = rows;
        m->capacity = capacity;
    }
    m->rows[m->count++] = *row;
    return TR_OK;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* A field up to its end character; an empty one is NaN where it may be. */
static bool read_field(const char **at, char end, bool may_be_empty, double *out)
{
    char *after;
    *out = NAN;
    if (**at == end) {
        ++*at;
        return may_be_empty;
    }
    if (**at == ' ' || **at == '\t' || **at == '\n') return false;
    *out = strtod(*at, &after);
    if (*after != end) return false;
    *at = after + 1;
    return true;
}

static bool read_row(const char **at, bool accuracy, tr_metrics_row *row)
{
    double step, items;
    row->validation_accuracy = NAN;
    bool whole = read_field(at, ',', false, &step) && read_field(at, ',', false, &items) &&
                 read_field(at, ',', false, &row->lr) && read_field(at, ',', true, &row->loss) &&
                 read_field(at, ',', true, &row->validation_loss) && read_field(at, ',', true, &row->items_per_s) &&
                 read_field(at, ',', true, &row->grad_norm) &&
                 read_field(at, accuracy ? ',' : '\n', true, &row->seconds) &&
                 (!accuracy || read_field(at, '\n', true, &row->validation_accuracy));
    if (!whole || !(step >= 0 && step < 9e15) || !(items >= 0 && items < 9e18)) return false;
    row->step = (int64_t)step;
    row->items = (int64_t)items;
    return true;
}

/* Takes over the rows of text to last_step; *kept becomes the length of what is good. */
static tr_status read_rows(tr_metrics *m, const char *text, size_t length, int64_t last_step, size_t *kept)
{
    size_t head = strlen(m->header);
    *kept = 0;
    if (length < head && strncmp(text, m->header, length) == 0) return TR_OK; /* empty, or cut within the header */
    if (strncmp(text, m->header, head) != 0)
        return tr__fail(
            TR_FORMAT, "%s is no metrics file: its first line should be \"%.*s\"", m->path, (int)head - 1, m->header);
    const char *end = memrchr(text, '\n', length);
    int64_t line = 1;
    for (const char *at = text + head; at <= end; line++) {
        tr_metrics_row row;
        if (!read_row(&at, m->accuracy, &row)) return tr__fail(TR_FORMAT, "%s: line %" PRId64 " is damaged", m->path, line + 1);
        if (row.step > last_step) break;
        TR__TRY(remember(m, &row));
        *kept = (size_t)(at - text);
    }
    if (!*kept) *kept = head;
    return TR_OK;
}

static tr_status read_text(tr_metrics *m, char **text, size_t *length)
{
    struct stat s;
    if (fstat(m->fd - 1, &s) < 0) return tr__fail_errno(TR_IO, errno, "cannot read %s", m->path);
    if (!S_ISREG(s.st_mode)) return tr__fail(TR_FORMAT, "%s is no plain file", m->path);
    *text = malloc((size_t)s.st_size + 1);
    if (!*text) return tr__fail(TR_NO_MEMORY, "no memory to read %s", m->path);
    for (*length = 0; *length < (size_t)s.st_size;) {
        ssize_t got = pread(m->fd - 1, *text + *length, (size_t)s.st_size - *length, (off_t)*length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return tr__fail_errno(TR_IO, errno, "cannot read %s", m->path);
        if (got == 0) break;
        *length += (size_t)got;
    }
    (*text)[*length] = '\0';
    return TR_OK;
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

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

static int put_number(char *to, size_t bytes, const char *format, double value, char end)
{
    int n = isnan(value) ? 0 : snprintf(to, bytes, format, value);
    to[n] = end;
    return n + 1;
}

/* Losses and norms are f32 at heart: nine digits hold them exactly, so that runs can be compared by their files. */
tr_status tr_metrics_add(tr_metrics *m, const tr_metrics_row *row)
{
    TR__TRY(tr_status_of(m));
    TR__C_NUMBERS;
    char line[512];
    size_t room = 64;
    int n = snprintf(line, sizeof line, "%" PRId64 ",%" PRId64 ",", row->step, row->items);
    n += put_number(line + n, room, "%.9g", row->lr, ',');
    n += put_number(line + n, room, "%.9g", row->loss, ',');
    n += put_number(line + n, room, "%.9g", row->validation_loss, ',');
    n += put_number(line + n, room, "%.1f", row->items_per_s, ',');
    n += put_number(line + n, room, "%.9g", row->grad_norm, ',');
    n += put_number(line + n, room, "%.3f", row->seconds, m->accuracy ? ',' : '\n');
    if (m->accuracy) n += put_number(line + n, room, "%.9g", row->validation_accuracy, '\n');
    TR__TRY(append(m, line, (size_t)n));
    return remember(m, row);
}

tr_status tr_metrics_sync(tr_metrics *m)
{
    TR__TRY(tr_status_of(m));
    return fsync(m->fd - 1) == 0 ? TR_OK : tr__fail_errno(TR_IO, errno, "cannot write %s", m->path);
}

const tr_metrics_row *tr_metrics_rows(const tr_metrics *m, int64_t *count)
{
    *count = m->count;
    return m->rows;
}

static tr_status open_file(tr_metrics *m, int64_t last_step)
{
    TR__C_NUMBERS;
    m->fd = open(m->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666) + 1;
    if (!m->fd) return tr__fail_errno(TR_IO, errno, "cannot open %s", m->path);
    char *text = NULL;
    size_t length = 0, kept = 0;
    tr_status status = read_text(m, &text, &length);
    if (status == TR_OK) status = read_rows(m, text, length, last_step, &kept);
    free(text);
    if (status != TR_OK) return status;
    if (kept < length && ftruncate(m->fd - 1, (off_t)kept) < 0)
        return tr__fail_errno(TR_IO, errno, "cannot write %s", m->path);
    return kept ? TR_OK : append(m, m->header, strlen(m->header));
}

static tr_status fill_in(tr_metrics *m, const tr_metrics_options *o)
{
    const char *item = o->item ? o->item : "token";
    if (strlen(item) > 20) return tr__fail(TR_INVALID, "metrics: the item \"%s\" has more than 20 letters", item);
    m->accuracy = o->accuracy;
    snprintf(m->header, sizeof m->header, "step,%ss,lr,loss,validation_loss,%ss_per_s,grad_norm,seconds%s\n", item, item,
        o->accuracy ? ",validation_accuracy" : "");
    m->path = strdup(o->path);
    if (!m->path) return tr__fail(TR_NO_MEMORY, "out of memory");
    return open_file(m, o->last_step);
}

tr_metrics *tr_metrics_open_with(const tr_metrics_options *options)
{
    tr_metrics *m = tr__object_new(&metrics_type);
    if (tr_status_of(m) != TR_OK) return m;
    if (fill_in(m, options) != TR_OK) tr__object_break(m);
    return m;
}
