/* Rows of the table of algorithms from measured and predicted times, and how far they are apart. */
#include "tune.h"

#include "options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES = 64, SPANS = 7 };

/* Numbers of ranks for which the table has rows of its own; the last one is for more, too. Costs are looked at for the
 * largest and for three quarters of it, which is no power of two. */
static const int spans[SPANS] = {2, 4, 8, 16, 32, 64, 128};

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* What one kind of collective goes by, by size. */
typedef struct choices {
    int64_t from[SIZES]; /* more than so many bytes; the first: any */
    int algorithm[SIZES];
    int count;
} choices;

typedef struct sizes {
    int64_t bytes[SIZES];
    int count;
} sizes;

static sizes sizes_of(const tr__times *times, tr_collective_kind kind)
{
    sizes s = {.count = 0};
    for (int i = 0; i < times->count && s.count < SIZES; i++) {
        const tr__time *t = &times->list[i];
        if (t->kind == kind && (s.count == 0 || t->bytes > s.bytes[s.count - 1])) s.bytes[s.count++] = t->bytes;
    }
    return s;
}

/* The fastest; the one that smaller messages go by stays unless another is faster by more than what chance makes. */
static int fastest(const double us[TR__TUNE_ALGORITHMS], int before)
{
    const double clearly = 0.95;
    int best = -1;
    for (int a = 0; a < TR__TUNE_ALGORITHMS; a++)
        if (isfinite(us[a]) && (best < 0 || us[a] < us[best])) best = a;
    return before >= 0 && us[best] > clearly * us[before] ? before : best;
}

/* Above half-way between two sizes, the larger one's fastest counts. */
static void choose(choices *c, const sizes *s, int i, const double us[TR__TUNE_ALGORITHMS])
{
    int before = c->count ? c->algorithm[c->count - 1] : -1, best = fastest(us, before);
    if (best == before) return;
    c->from[c->count] = i ? (int64_t)sqrt((double)s->bytes[i - 1] * (double)s->bytes[i]) : 0;
    c->algorithm[c->count++] = best;
}

static void measured_us(const tr__times *times, tr_collective_kind kind, int64_t bytes, double us[TR__TUNE_ALGORITHMS])
{
    for (int a = 0; a < TR__TUNE_ALGORITHMS; a++) us[a] = INFINITY;
    for (int i = 0; i < times->count; i++) {
        const tr__time *t = &times->list[i];
        if (t->kind == kind && t->bytes == bytes) us[t->algorithm] = t->measured_us;
    }
}

static tr_status predicted_us(tr_collective_kind kind, int ranks, int64_t bytes, const tr_network *network,
    double us[TR__TUNE_ALGORITHMS])
{
    for (int a = 0; a < TR__TUNE_ALGORITHMS; a++) {
        double most, fewer = 0;
        const char *name = tr__tune_algorithms[a];
        us[a] = INFINITY;
        if (!tr__tune_exists(kind, a)) continue;
        TRY(tr_predict(kind, name, ranks, bytes, network, &most));
        TRY(tr_predict(kind, name, ranks > 2 ? ranks - ranks / 4 : ranks, bytes, network, &fewer));
        us[a] = 1e6 * sqrt(most * fewer);
    }
    return TR_OK;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void write_number(FILE *file, int64_t number)
{
    int unit = 0;
    for (; unit < 3 && number && number % 1024 == 0; unit++) number /= 1024;
    fprintf(file, "%lld%.*s", (long long)number, unit > 0, &" KMG"[unit]);
}

/* For `from` to `to` ranks; to below from: and more. */
static void write_choices(FILE *file, tr_collective_kind kind, int from, int to, const choices *c)
{
    char ranks[32];
    snprintf(ranks, sizeof ranks, "%d-%d", from, to);
    if (to <= from) snprintf(ranks, sizeof ranks, "%d%s", from, to < from ? "-" : "");
    for (int i = 0; i < c->count; i++) {
        fprintf(file, "%s ranks %s bytes 0-", tr__tune_kind_name(kind), ranks);
        if (i + 1 < c->count) write_number(file, c->from[i + 1]);
        fprintf(file, " %s\n", tr__tune_algorithms[c->algorithm[i]]);
    }
}

static bool same(const choices *a, const choices *b)
{
    size_t n = (size_t)a->count;
    return a->count == b->count && !memcmp(a->from, b->from, n * sizeof *a->from) &&
           !memcmp(a->algorithm, b->algorithm, n * sizeof *a->algorithm);
}

/* Spans of ranks with the same choices are one. */
static tr_status write_predicted(const sizes *s, tr_collective_kind kind, const tr_network *network, FILE *file)
{
    choices now = {.count = 0}, next;
    int from = 2;
    for (int span = 0; span < SPANS; span++) {
        next.count = 0;
        for (int i = 0; i < s->count; i++) {
            double us[TR__TUNE_ALGORITHMS];
            TRY(predicted_us(kind, spans[span], s->bytes[i], network, us));
            choose(&next, s, i, us);
        }
        if (span > 0 && !same(&now, &next)) {
            write_choices(file, kind, from, spans[span - 1], &now);
            from = spans[span - 1] + 1;
        }
        now = next;
    }
    write_choices(file, kind, from, 0, &now);
    return TR_OK;
}

static void write_measured(const sizes *s, const tr__times *times, tr_collective_kind kind, FILE *file)
{
    choices c = {.count = 0};
    for (int i = 0; i < s->count; i++) {
        double us[TR__TUNE_ALGORITHMS];
        measured_us(times, kind, s->bytes[i], us);
        choose(&c, s, i, us);
    }
    write_choices(file, kind, times->ranks, times->ranks, &c);
}

tr_status tr__tune_write(const tr__times *times, const tr_network *network, FILE *file)
{
    const tr_network *n = network;
    fprintf(file, "network latency_ns %.0f overhead_ns %.0f mbytes_per_s %.0f copy_mbytes_per_s %.0f fold_mbytes_per_s %.0f\n",
        n->latency_us * 1e3, n->overhead_us * 1e3, fmax(1, n->gbytes_per_s * 1e3), fmax(1, n->copy_gbytes_per_s * 1e3),
        fmax(1, n->fold_gbytes_per_s * 1e3));
    for (int k = 0; k < TR__TUNE_KINDS; k++) {
        sizes s = sizes_of(times, tr__tune_kinds[k]);
        write_measured(&s, times, tr__tune_kinds[k], file);
        if (s.count) TRY(write_predicted(&s, tr__tune_kinds[k], network, file));
    }
    return TR_OK;
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How much longer than the fastest that one takes which the predictions prefer: of the times from `first` on that are
 * of one kind and size. *next gets where the following ones begin. */
static double regret(const tr__times *times, int first, int *next)
{
    const tr__time *t = times->list;
    int best = first, chosen = first, i = first;
    for (; i < times->count && t[i].kind == t[first].kind && t[i].bytes == t[first].bytes; i++) {
        if (t[i].measured_us < t[best].measured_us) best = i;
        if (t[i].predicted_us < t[chosen].predicted_us) chosen = i;
    }
    *next = i;
    return t[chosen].measured_us / t[best].measured_us;
}

tr_status tr__tune_judge(const tr__times *times, tr__tune_error *error)
{
    int n = times->count, cases = 0;
    double *ratios = malloc(sizeof(double) * (size_t)n);
    if (!ratios) return TR_NO_MEMORY;
    *error = (tr__tune_error){.chosen_worst = 1};
    for (int i = 0; i < n; i++) {
        ratios[i] = exp(fabs(log(times->list[i].measured_us / times->list[i].predicted_us)));
        if (ratios[i] > error->worst) error->worst_at = i;
        error->worst = fmax(error->worst, ratios[i]);
    }
    qsort(ratios, (size_t)n, sizeof *ratios, by_value);
    error->median = ratios[n / 2];
    error->ninth = ratios[n * 9 / 10];
    free(ratios);
    for (int i = 0; i < n; cases++) {
        double longer = regret(times, i, &i);
        error->chosen_mean += longer;
        error->chosen_worst = fmax(error->chosen_worst, longer);
    }
    error->chosen_mean /= cases;
    return TR_OK;
}
