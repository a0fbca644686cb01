/*
 * How training goes, for a person: in a terminal one line that is written over,
 *
 *     step 1240/2000 ━━━━━━━━━━━━╸───────  62%  loss 1.732  validation 1.871  24.3k tokens/s  12 s left
 *
 * and elsewhere a line every few seconds. It writes to a stream that the program gives.
 */
#include "common.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NUMBER = 320 }; /* bytes of the longest: 1e308 has 309 digits */

struct tr_progress {
    tr_object object;
    FILE *to;
    bool terminal, ascii;
    int64_t interval_ns;
    int64_t first_ns, shown_ns;
    int64_t first_step; /* done before the first one that was shown: the rate counts from there */
    double loss;        /* smoothed, for a batch's own loss jumps about */
    double validation_loss, validation_accuracy;
    double rate;    /* items a second, smoothed */
    const char *item;
    bool line_open; /* the terminal's line holds our bar */
    tr_metrics_row last;
    int64_t steps;
};

static void destroy(void *self)
{
    tr_progress *p = self;
    if (p->line_open) tr_progress_end(p);
}

static const tr_object_type progress_type = {"progress", sizeof(tr_progress), destroy};

tr_progress *tr_progress_new_with(const tr_progress_options *o)
{
    tr_progress *p = tr_object_new(&progress_type);
    if (tr_status_of(p) != TR_OK) return p;
    if (!o->to) {
        (void)tr_fail(TR_INVALID, "progress: the stream is NULL");
        (void)tr_object_break(p);
        return p;
    }
    p->to = o->to;
    p->terminal = !o->plain && isatty(fileno(o->to));
    p->ascii = o->ascii;
    bool given = o->interval_s != 0 || signbit(o->interval_s) || tr_given(o, "interval_s");
    p->interval_ns = (int64_t)(1e9 * (given ? o->interval_s : p->terminal ? 0.1 : 10.0));
    p->loss = p->validation_loss = p->validation_accuracy = p->rate = NAN;
    p->item = o->item ? o->item : "token";
    return p;
}

static void put_rate(char *text, size_t bytes, double rate, const char *item)
{
    if (rate >= 1e6)
        snprintf(text, bytes, "%.2fM %ss/s", rate / 1e6, item);
    else if (rate >= 1e4)
        snprintf(text, bytes, "%.1fk %ss/s", rate / 1e3, item);
    else
        snprintf(text, bytes, "%.*f %ss/s", rate < 10 ? 1 : 0, rate, item);
}

static void put_left(char *text, size_t bytes, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e8))
        *text = '\0';
    else if (seconds < 100)
        snprintf(text, bytes, "  %.0f s left", ceil(seconds));
    else if (seconds < 100 * 60)
        snprintf(text, bytes, "  %d min %02d s left", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(text, bytes, "  %d h %02d min left", (int)seconds / 3600, (int)seconds / 60 % 60);
}

/* What both kinds of line say behind the step. Returns its length. */
static int put_numbers(const tr_progress *p, char *text, size_t bytes)
{
    char rate[64], left[48], validation[NUMBER + 64] = "";
    double elapsed = (double)(tr__tools_now_ns() - p->first_ns) / 1e9;
    int64_t done = p->last.step - p->first_step;
    put_rate(rate, sizeof rate, p->rate, p->item);
    put_left(left, sizeof left,
        done && p->last.step < p->steps ? elapsed / (double)done * (double)(p->steps - p->last.step) : NAN);
    if (!isnan(p->validation_loss)) {
        int n = snprintf(validation, sizeof validation, "  validation %.4f", p->validation_loss);
        if (!isnan(p->validation_accuracy))
            snprintf(validation + n, sizeof validation - (size_t)n, ", %.2f %% right", 100 * p->validation_accuracy);
    }
    return snprintf(text, bytes, "  loss %.4f%s  %s%s", p->loss, validation, rate, left);
}

static void put_bar(const tr_progress *p, int cells, double part)
{
    int full = (int)(part * cells);
    bool half = !p->ascii && full < cells && part * cells - full >= 0.5;
    for (int i = 0; i < cells; i++) {
        if (i < full)
            fputs(p->ascii ? "#" : "━", p->to);
        else if (i == full && half)
            fputs("╸", p->to);
        else
            fputs(p->ascii ? "." : "─", p->to);
    }
}

static void put_terminal_line(tr_progress *p)
{
    char head[64], numbers[2 * NUMBER + 256], percent[16], line[sizeof head + sizeof numbers];
    double part = p->steps > 0 ? (double)p->last.step / (double)p->steps : 1;
    int used = snprintf(head, sizeof head, "step %" PRId64 "/%" PRId64 " ", p->last.step, p->steps);
    used += put_numbers(p, numbers, sizeof numbers);
    used += snprintf(percent, sizeof percent, " %3d%%", (int)(100 * part));
    struct winsize size;
    int width = ioctl(fileno(p->to), TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col - 1 : 79; /* a full line would wrap */
    int room = width - used;
    snprintf(line, sizeof line, "%s%s", head, room >= 0 ? "" : numbers + 1);
    fprintf(p->to, "\r\033[K%.*s", width, line);
    if (room >= 4) put_bar(p, room < 30 ? room : 30, part);
    if (room >= 0) fprintf(p->to, "%s%s", percent, numbers);
    fflush(p->to);
    p->line_open = true;
}

static void put_plain_line(const tr_progress *p)
{
    char numbers[2 * NUMBER + 256];
    put_numbers(p, numbers, sizeof numbers);
    fprintf(p->to, "step %" PRId64 "/%" PRId64 "%s\n", p->last.step, p->steps, numbers);
    fflush(p->to);
}

static double smooth(double before, double now, double share)
{
    if (isnan(now)) return before;
    return isnan(before) ? now : before + share * (now - before);
}

static void show(tr_progress *p)
{
    p->shown_ns = tr__tools_now_ns();
    if (p->terminal)
        put_terminal_line(p);
    else
        put_plain_line(p);
}

void tr_progress_step(tr_progress *p, const tr_metrics_row *row, int64_t steps)
{
    if (tr_status_of(p) != TR_OK) return;
    int64_t now = tr__tools_now_ns();
    if (!p->first_ns) {
        p->first_ns = now;
        p->first_step = row->step;
    }
    p->last = *row;
    p->steps = steps;
    p->loss = smooth(p->loss, row->loss, 0.15);
    p->rate = smooth(p->rate, row->items_per_s, 0.1);
    bool measured = !isnan(row->validation_loss);
    if (measured) {
        p->validation_loss = row->validation_loss;
        p->validation_accuracy = row->validation_accuracy;
    }
    if (!p->shown_ns || now - p->shown_ns >= p->interval_ns || row->step == steps || measured) show(p);
}

void tr_progress_note(tr_progress *p, const char *text)
{
    if (tr_status_of(p) != TR_OK) return;
    fprintf(p->to, "%s%s\n", p->line_open ? "\r\033[K" : "", text);
    fflush(p->to);
    if (p->line_open) show(p);
}

void tr_progress_end(tr_progress *p)
{
    if (tr_status_of(p) != TR_OK || !p->line_open) return;
    show(p);
    fputc('\n', p->to);
    fflush(p->to);
    p->line_open = false;
}
