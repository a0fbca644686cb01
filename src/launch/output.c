#include "launch/output.h"

#include "base/folder.h"
#include "base/object.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct line_head {
    int rank;
    bool is_stderr;
    size_t length;
} line_head;

enum { batch_bytes = 256 << 10 };

/* ---- From the loop to the thread --------------------------------------------------------------------------------- */

/* What cannot be written (a full disk) is lost: the job is worth more than its output. */
static void write_log(int fd, const char *line, size_t length)
{
    struct iovec parts[] = {{(char *)line, length}, {"\n", 1}};
    while (writev(fd, parts, 2) < 0 && errno == EINTR) continue;
}

static void give(const tr__output *o)
{
    for (size_t at = 0; at < o->giving.used;) {
        line_head head;
        memcpy(&head, o->giving.data + at, sizeof head);
        at += sizeof head;
        const char *line = o->giving.data + at;
        if (o->logs[head.rank] >= 0) write_log(o->logs[head.rank], line, head.length);
        int rank = o->options.first_rank + head.rank;
        if (o->options.function) o->options.function(rank, head.is_stderr, line, head.length, o->options.user);
        at += head.length;
    }
}

static void *output_thread(void *argument)
{
    tr__output *o = argument;
    pthread_mutex_lock(&o->lock);
    for (;;) {
        while (!o->filling.used && !o->stop) pthread_cond_wait(&o->more, &o->lock);
        if (!o->filling.used) break;
        tr__batch full = o->filling;
        o->filling = o->giving;
        o->filling.used = 0;
        o->giving = full;
        if (o->full && !o->stop) uv_async_send(&o->room);
        o->full = false;
        pthread_mutex_unlock(&o->lock);
        give(o);
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* False when there is no room: the line is to be offered again. */
static bool put(tr__output *o, const tr__stream *s, const char *line, size_t length)
{
    line_head head = {s->rank, s->is_stderr, length};
    TR__LOCKED(&o->lock);
    bool fits = o->filling.used + sizeof head + length <= batch_bytes;
    if (fits) {
        memcpy(o->filling.data + o->filling.used, &head, sizeof head);
        memcpy(o->filling.data + o->filling.used + sizeof head, line, length);
        o->filling.used += sizeof head + length;
        pthread_cond_signal(&o->more);
    }
    o->full |= !fits;
    return fits;
}

/* ---- From pipes to lines ----------------------------------------------------------------------------------------- */

static void remember(tr__tail *tail, const char *line, size_t length)
{
    if (length > TR__TAIL_BYTES / 2) length = TR__TAIL_BYTES / 2;
    while (tail->used + length + 1 > TR__TAIL_BYTES) {
        size_t first = (size_t)((char *)memchr(tail->text, '\n', tail->used) - tail->text) + 1;
        tail->used -= first;
        memmove(tail->text, tail->text + first, tail->used);
    }
    for (size_t i = 0; i < length; i++) { /* escape sequences would act a second time */
        unsigned char c = (unsigned char)line[i];
        tail->text[tail->used++] = c < ' ' || c == 127 ? ' ' : (char)c;
    }
    tail->text[tail->used++] = '\n';
}

static size_t longest_line(const tr__output *o)
{
    return TR__LINE_BYTES + (o->options.prefixed ? TR__PREFIX_BYTES : 0);
}

/* Where a line that is longer may be cut: not inside a UTF-8 character. */
static size_t cut(const char *line, size_t length)
{
    size_t at = length;
    while (at > length - 4 && ((unsigned char)line[at - 1] & 0xc0) == 0x80) at--;
    return at > length - 4 && (unsigned char)line[at - 1] >= 0xc0 ? at - 1 : length;
}

/* Gives the first line in the buffer on. A carriage return ends a line too, so that progress bars show. */
static enum taken { NOTHING, LINE, NO_ROOM } take_line(tr__stream *s)
{
    const char *line = s->buffer + s->begin;
    if (s->skip_newline && s->begin < s->end) {
        s->skip_newline = false;
        if (*line == '\n') line++, s->begin++;
    }
    size_t have = s->end - s->begin, length = 0;
    while (length < have && line[length] != '\n' && line[length] != '\r') length++;
    bool whole = length < have;
    size_t longest = longest_line(s->output);
    if (!whole) {
        if (!have || (!s->ended && have <= longest)) return NOTHING;
        if (have > longest) length = cut(line, longest);
    }
    if (!put(s->output, s, line, length)) return NO_ROOM;
    remember(&s->output->tails[s->rank], line, length);
    s->skip_newline = whole && line[length] == '\r';
    s->begin += length + whole;
    return LINE;
}

static void end_stream(tr__stream *s)
{
    if (!s->open) return;
    s->open = false;
    uv_close((uv_handle_t *)&s->poll, NULL);
    close(s->fd);
    free(s->buffer);
}

static void on_readable(uv_poll_t *poll, int status, int events);

static void pause_stream(tr__stream *s, bool paused)
{
    if (s->paused == paused) return;
    s->paused = paused;
    if (paused) uv_poll_stop(&s->poll);
    else uv_poll_start(&s->poll, UV_READABLE, on_readable);
}

/* Hands lines on, and reads once where there is something to read: the other pipes, deaths and signals have their turn
 * before the next time. */
static void pump(tr__stream *s, bool readable)
{
    for (;;) {
        enum taken taken;
        while ((taken = take_line(s)) == LINE) continue;
        if (taken == NO_ROOM || (!s->ended && !readable)) {
            pause_stream(s, taken == NO_ROOM); /* until on_room */
            return;
        }
        if (s->ended) {
            end_stream(s);
            return;
        }
        s->end -= s->begin;
        memmove(s->buffer, s->buffer + s->begin, s->end);
        s->begin = 0;
        ssize_t got = read(s->fd, s->buffer + s->end, longest_line(s->output) + 1 - s->end);
        if (got > 0) s->end += (size_t)got;
        else s->ended = got == 0 || (errno != EINTR && (errno != EAGAIN || s->output->draining));
        readable = s->output->draining;
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events; /* an error shows in read() */
    pump(poll->data, true);
}

static void pump_all(tr__output *o)
{
    for (int i = 0; i < 2 * o->ranks; i++)
        if (o->streams[i].open) pump(&o->streams[i], o->draining);
}

static void on_room(uv_async_t *room)
{
    pump_all(room->data);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void free_output(tr__output *o)
{
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->more);
    free(o->streams);
    free(o->tails);
    for (int i = 0; i < o->ranks && o->logs; i++)
        if (o->logs[i] >= 0) close(o->logs[i]);
    free(o->logs);
    free(o->filling.data);
    free(o->giving.data);
}

/* The thread leaves signals to others, but for SIGPIPE: it is how a program learns that nobody reads its output. */
static int start_thread(tr__output *o)
{
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGPIPE);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&o->thread, NULL, output_thread, o);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

static tr_status open_logs(tr__output *o)
{
    const char *folder = o->options.log_dir;
    for (int i = 0; i < o->ranks; i++) o->logs[i] = -1;
    if (!folder) return TR_OK;
    tr_status made = tr__folder_make(folder);
    if (made) return tr__fail_context(made, "launch: the ranks' logs");
    for (int i = 0; i < o->ranks; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/rank-%d.log", folder, o->options.first_rank + i);
        int anew = o->options.append ? 0 : O_TRUNC;
        o->logs[i] = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | anew, 0666);
        if (o->logs[i] < 0) return tr__fail_errno(TR_IO, errno, "launch: cannot write %s", path);
    }
    return TR_OK;
}

static tr_status allocate(tr__output *o)
{
    size_t ranks = (size_t)o->ranks;
    o->streams = calloc(ranks, 2 * sizeof *o->streams);
    o->tails = calloc(ranks, sizeof *o->tails);
    o->logs = calloc(ranks, sizeof *o->logs);
    o->filling.data = malloc(batch_bytes);
    o->giving.data = malloc(batch_bytes);
    if (o->streams && o->tails && o->logs && o->filling.data && o->giving.data) return TR_OK;
    free(o->logs);
    o->logs = NULL;
    return tr__fail(TR_NO_MEMORY, "launch: no memory for the output of %d ranks", o->ranks);
}

tr_status tr__output_open(tr__output *o, uv_loop_t *loop, const tr__output_options *options)
{
    *o = (tr__output){.options = *options, .ranks = options->ranks};
    if (!options->function && !options->log_dir) return TR_OK;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->more, NULL);
    tr_status status = allocate(o);
    if (status == TR_OK) status = open_logs(o);
    if (status == TR_OK && uv_async_init(loop, &o->room, on_room) != 0)
        status = tr__fail(TR_NO_MEMORY, "launch: no memory for the output of %d ranks", o->ranks);
    if (status) {
        free_output(o);
        return status;
    }
    o->room.data = o;
    int error = start_thread(o);
    o->has_thread = error == 0;
    if (o->has_thread) return TR_OK;
    uv_close((uv_handle_t *)&o->room, NULL);
    uv_run(loop, UV_RUN_NOWAIT);
    free_output(o);
    return tr__fail_errno(TR_IO, error, "launch: cannot start a thread");
}

tr_status tr__output_add(tr__output *o, uv_loop_t *loop, int rank, bool is_stderr, int *write_end)
{
    tr__stream *s = &o->streams[2 * rank + is_stderr];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return tr__fail_errno(TR_IO, errno, "launch: cannot open a pipe for rank %d (see ulimit -n)",
        o->options.first_rank + rank);
    *s = (tr__stream){.output = o, .rank = rank, .is_stderr = is_stderr, .fd = ends[0], .buffer = malloc(longest_line(o) + 1)};
    int error = UV_ENOMEM;
    if (!s->buffer || (error = uv_poll_init(loop, &s->poll, s->fd)) < 0) {
        free(s->buffer);
        close(ends[0]);
        close(ends[1]);
        return tr__fail(TR_NO_MEMORY, "launch: cannot watch the output of rank %d: %s", o->options.first_rank + rank,
            uv_strerror(error));
    }
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    s->open = true;
    s->poll.data = s;
    uv_poll_start(&s->poll, UV_READABLE, on_readable);
    *write_end = ends[1];
    return TR_OK;
}

void tr__output_drain(tr__output *o)
{
    o->draining = true;
    if (o->has_thread) pump_all(o);
}

bool tr__output_idle(const tr__output *o)
{
    for (int i = 0; o->has_thread && i < 2 * o->ranks; i++)
        if (o->streams[i].open) return false;
    return true;
}

void tr__output_end(tr__output *o)
{
    if (!o->has_thread) return;
    for (int i = 0; i < 2 * o->ranks; i++) end_stream(&o->streams[i]);
    TR__LOCKED(&o->lock);
    o->stop = true;
    pthread_cond_signal(&o->more);
}

void tr__output_free(tr__output *o)
{
    if (!o->has_thread) return;
    pthread_join(o->thread, NULL);
    free_output(o);
}

void tr__output_last_lines(const tr__output *o, int rank, const char *heading, char *text, size_t bytes)
{
    static const char indent[] = "\n    ";
    if (!o->has_thread || !o->tails[rank].used) return;
    const tr__tail *tail = &o->tails[rank];
    size_t used = strlen(text) + strlen(heading), need = 0, from = tail->used;
    if (used >= bytes) return;
    strcat(text, heading);
    for (int lines = 0; lines < 10 && from > 0; lines++) {
        size_t start = from - 1; /* of the line that ends before from */
        while (start > 0 && tail->text[start - 1] != '\n') start--;
        need += from - start - 1 + sizeof indent - 1;
        if (used + need >= bytes) break;
        from = start;
    }
    while (from < tail->used) {
        size_t length = (size_t)((char *)memchr(tail->text + from, '\n', tail->used - from) - tail->text) - from;
        memcpy(text + used, indent, sizeof indent - 1);
        memcpy(text + used + sizeof indent - 1, tail->text + from, length);
        used += sizeof indent - 1 + length;
        from += length + 1;
    }
    text[used] = '\0';
}
