/* A profile as a Chrome trace, and as tables. */
#include "train/profile_files.h"

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/folder.h"
#include "base/json_string.h"
#include "base/memory.h"
#include "base/profile.h"
#include "nn/module.h"

#include <trireme/train.h>

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const categories[TR__SPAN_KINDS] = {
    [TR__SPAN_STEP] = "step",
    [TR__SPAN_MODULE] = "module",
    [TR__SPAN_OP] = "op",
    [TR__SPAN_BACKWARD] = "backward",
    [TR__SPAN_COLLECTIVE] = "collective",
    [TR__SPAN_WAIT] = "wait",
};

/* ---- Who is who ------------------------------------------------------------------------------------------------------ */

/* All spans of one kind, name and algorithm: of a module, one module's. */
typedef struct total {
    tr__span_kind kind;
    const void *who;
    const char *name, *algorithm; /* the path of a module; NULL: none */
    int64_t calls, ns, peak, kept;
} total;

typedef struct tables {
    const tr_module *net; /* or NULL */
    const tr__span *spans;
    size_t count, lost;
    total *totals;
    size_t n, room;
    int64_t steps;
} tables;

static total *find(const tables *t, const total *key)
{
    for (size_t i = 0; i < t->n; i++) {
        total *each = &t->totals[i];
        if (each->kind != key->kind || each->who != key->who || each->algorithm != key->algorithm) continue;
        if (key->who || strcmp(each->name, key->name) == 0) return each;
    }
    return NULL;
}

static total *add(tables *t, const total *key)
{
    if (!tr__grow(&t->totals, t->n, &t->room, sizeof *t->totals)) return NULL;
    t->totals[t->n] = *key;
    t->totals[t->n].name = strdup(key->name);
    return t->totals[t->n].name ? &t->totals[t->n++] : NULL;
}

static tr_status name_module(tr__walk *walk, tr_module *module)
{
    tables *t = walk->user;
    char name[512];
    const char *root = tr__path_root(t->net, walk->path);
    snprintf(name, sizeof name, "%.60s%s%s", root, *root ? "." : "", *walk->path ? walk->path : tr_module_name(module));
    total key = {.kind = TR__SPAN_MODULE, .who = module, .name = name};
    if (find(t, &key) || add(t, &key)) return TR_OK;
    return tr__fail(TR_NO_MEMORY, "out of memory");
}

static tr_status sum_up(tables *t, tr_module *net)
{
    t->net = net;
    if (net) TR__TRY(tr__module_walk(net, &(tr__walk){.module = name_module, .user = t}));
    for (size_t i = 0; i < t->count; i++) {
        const tr__span *s = &t->spans[i];
        total key = {.kind = s->kind, .who = s->who, .name = s->name, .algorithm = s->algorithm}, *to = find(t, &key);
        if (!to && !(to = add(t, &key))) return tr__fail(TR_NO_MEMORY, "out of memory");
        to->calls++;
        to->ns += s->end - s->begin;
        if (s->peak > to->peak) to->peak = s->peak;
        if (s->kept > to->kept) to->kept = s->kept;
        t->steps += s->kind == TR__SPAN_STEP;
    }
    return TR_OK;
}

/* ---- The trace ------------------------------------------------------------------------------------------------------- */

static void write_time(FILE *to, const char *key, int64_t ns)
{
    fprintf(to, ",\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

/* What may overlap others of its thread is a track of its own ("b", "e"), the rest nests ("X"). wall: what makes of the
 * monotonic clock the wall's, on which traces of several hosts fit together. */
static void write_span(FILE *to, const tables *t, size_t i, int rank, int64_t wall)
{
    const tr__span *s = &t->spans[i];
    const total *module = s->who ? find(t, &(total){.kind = s->kind, .who = s->who}) : NULL;
    bool overlaps = s->kind == TR__SPAN_COLLECTIVE;
    for (int end = 0; end <= (int)overlaps; end++) {
        fprintf(to, ",\n{\"name\":");
        tr__json_string(to, module ? module->name : s->name);
        fprintf(to, ",\"cat\":\"%s\",\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", categories[s->kind],
            !overlaps ? "X" : end ? "e" : "b", rank, s->thread);
        if (overlaps) fprintf(to, ",\"id\":%zu", i);
        write_time(to, "ts", wall + (end ? s->end : s->begin));
        if (!overlaps) write_time(to, "dur", s->end - s->begin);
        if (*s->detail && !end) {
            fprintf(to, ",\"args\":{\"what\":");
            tr__json_string(to, s->detail);
            if (s->algorithm) fprintf(to, ",\"algorithm\":\"%s\"", s->algorithm);
            fputc('}', to);
        } else if (s->kind == TR__SPAN_MODULE || s->kind == TR__SPAN_STEP) {
            fprintf(to, ",\"args\":{\"peak_bytes\":%" PRId64 ",\"kept_bytes\":%" PRId64 "}", s->peak, s->kept);
        }
        fputc('}', to);
    }
}

static void write_trace(FILE *to, const tables *t, int rank)
{
    int64_t wall = tr__wall_ns() - tr__now_ns();
    fprintf(to, "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d (pid %d)\"}}",
        rank, rank, (int)getpid());
    for (size_t i = 0; i < t->count; i++) write_span(to, t, i, rank, wall);
    fprintf(to, "\n]}\n");
}

/* ---- The tables ------------------------------------------------------------------------------------------------------ */

static double mb(int64_t bytes)
{
    return 1e-6 * (double)bytes;
}

static void write_steps(FILE *to, const tables *t)
{
    fprintf(to, "Steps        ms   peak MB   kept MB   (memory of cpu:0 beyond what was in use before the step)\n");
    for (size_t i = 0; i < t->count; i++) {
        const tr__span *s = &t->spans[i];
        if (s->kind != TR__SPAN_STEP) continue;
        fprintf(to, "%-6s %8.2f %9.2f %9.2f\n", s->name + strcspn(s->name, "0123456789"), 1e-6 * (double)(s->end - s->begin),
            mb(s->peak), mb(s->kept));
    }
}

static void write_modules(FILE *to, const tables *t)
{
    double steps = t->steps ? (double)t->steps : 1;
    fprintf(to, "\nModules, forward: calls and ms in a step; at most in a call, beyond what was in use before it\n"
                "   calls        ms   peak MB   kept MB   path\n");
    for (size_t i = 0; i < t->n; i++) {
        const total *m = &t->totals[i];
        if (m->kind == TR__SPAN_MODULE && m->calls)
            fprintf(to, "%8.1f %9.3f %9.2f %9.2f   %s\n", (double)m->calls / steps, 1e-6 * (double)m->ns / steps, mb(m->peak),
                mb(m->kept), m->name);
    }
}

static int by_time(const void *a, const void *b)
{
    const total *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void write_rest(FILE *to, tables *t)
{
    double steps = t->steps ? (double)t->steps : 1;
    qsort(t->totals, t->n, sizeof *t->totals, by_time);
    fprintf(to, "\nThe rest, longest first: calls and ms in a step (backward has its ops inside; ops may have others)\n"
                "   calls        ms   what\n");
    for (size_t i = 0; i < t->n; i++) {
        const total *o = &t->totals[i];
        if (o->kind != TR__SPAN_MODULE && o->kind != TR__SPAN_STEP)
            fprintf(to, "%8.1f %9.3f   %s %s%s%s%s\n", (double)o->calls / steps, 1e-6 * (double)o->ns / steps, categories[o->kind],
                o->name, o->algorithm ? " (" : "", o->algorithm ? o->algorithm : "", o->algorithm ? ")" : "");
    }
    if (t->lost) fprintf(to, "\n%zu more found no room: take fewer steps\n", t->lost);
}

/* ---- Files ----------------------------------------------------------------------------------------------------------- */

static tr_status write_file(const char *folder, int rank, const char *ending, tables *t)
{
    char name[64], path[PATH_MAX], *text = NULL;
    size_t length;
    snprintf(name, sizeof name, "profile-rank%d.%s", rank, ending);
    TR__TRY(tr__path_join(path, folder, name));
    FILE *to = open_memstream(&text, &length);
    if (!to) return tr__fail(TR_NO_MEMORY, "out of memory");
    TR__C_NUMBERS;
    if (strcmp(ending, "txt") == 0) {
        write_steps(to, t);
        write_modules(to, t);
        write_rest(to, t);
    } else {
        write_trace(to, t, rank);
    }
    bool lost = ferror(to);
    tr_status status = fclose(to) != 0 || lost ? tr__fail(TR_NO_MEMORY, "no memory for the profile")
                                               : tr_write_file(path, text, length);
    free(text);
    return status;
}

tr_status tr__profile_write(const char *folder, int rank, tr_module *net)
{
    tables t = {.steps = 0};
    t.spans = tr__profile_spans(&t.count, &t.lost);
    tr_status status = sum_up(&t, net);
    if (status == TR_OK) status = tr__folder_make(folder); /* hosts other than rank 0's may not have it yet */
    if (status == TR_OK) status = write_file(folder, rank, "trace.json", &t);
    if (status == TR_OK) status = write_file(folder, rank, "txt", &t);
    for (size_t i = 0; i < t.n; i++) free((char *)t.totals[i].name);
    free(t.totals);
    tr__profile_drop();
    return status;
}
