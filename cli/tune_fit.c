/*
 * Constants of the cost model from measured times: least squares of log(measured / predicted), by Levenberg and
 * Marquardt's method on the logarithms of the constants. A constant that no time depends on stays where it began.
 */
#include "tune.h"

#include "options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONSTANTS = 5, TURNS = 25, BEGINNINGS = 3 };

const char *const tr__tune_algorithms[TR__TUNE_ALGORITHMS] = {"ring", "halving", "doubling", "tree", "direct"};

const tr_collective_kind tr__tune_kinds[TR__TUNE_KINDS] = {TR_ALL_REDUCE, TR_REDUCE, TR_BROADCAST, TR_ALL_GATHER,
    TR_GATHER, TR_SCATTER, TR_REDUCE_SCATTER};

const char *tr__tune_kind_name(tr_collective_kind kind)
{
    static const char *const names[] = {
#define ROW(name, text) [TR_##name] = text,
        TR_COLLECTIVE_MAP(ROW)
#undef ROW
    };
    return names[kind];
}

bool tr__tune_exists(tr_collective_kind kind, int algorithm)
{
    double seconds;
    tr_network any = {.gbytes_per_s = 1};
    return tr_predict(kind, tr__tune_algorithms[algorithm], 2, 0, &any, &seconds) == TR_OK;
}

/* ---- Predictions ------------------------------------------------------------------------------------------------- */

typedef struct fit {
    tr__times *times;
    double constants[CONSTANTS], begun[CONSTANTS]; /* logarithms of microseconds and GB/s */
    double *misses, *moved;                        /* [count]: log(measured / predicted) */
    double squares;
} fit;

static tr_network network_of(const double constants[CONSTANTS])
{
    return (tr_network){.latency_us = exp(constants[0]), .overhead_us = exp(constants[1]),
        .gbytes_per_s = exp(constants[2]), .copy_gbytes_per_s = exp(constants[3]), .fold_gbytes_per_s = exp(constants[4])};
}

static tr_status predict(const tr__time *t, int ranks, const tr_network *network, double *us)
{
    double seconds;
    tr_status status = tr_predict(t->kind, tr__tune_algorithms[t->algorithm], ranks, t->bytes, network, &seconds);
    *us = seconds * 1e6;
    return status;
}

/* One that is far off counts less: it may be a disturbance, or something that the model does not know. */
static double weight(double miss)
{
    const double far = 0.5;
    return fabs(miss) > far ? far / fabs(miss) : 1;
}

/* How firmly constants stay where they began: hardly. */
static const double hold = 1e-3;

static tr_status miss_all(const fit *f, const double constants[CONSTANTS], double *misses, double *squares)
{
    tr_network network = network_of(constants);
    *squares = 0;
    for (int i = 0; i < f->times->count; i++) {
        const tr__time *t = &f->times->list[i];
        double us;
        TRY(predict(t, f->times->ranks, &network, &us));
        misses[i] = log(t->measured_us / us);
        *squares += weight(misses[i]) * misses[i] * misses[i];
    }
    for (int c = 0; c < CONSTANTS; c++) *squares += hold * pow(constants[c] - f->begun[c], 2);
    return TR_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* a x = b, a symmetric and positive; x takes the place of b. */
static void solve(double a[CONSTANTS][CONSTANTS], double b[CONSTANTS])
{
    for (int k = 0; k < CONSTANTS; k++)
        for (int i = k + 1; i < CONSTANTS; i++) {
            double part = a[i][k] / a[k][k];
            for (int j = k; j < CONSTANTS; j++) a[i][j] -= part * a[k][j];
            b[i] -= part * b[k];
        }
    for (int i = CONSTANTS - 1; i >= 0; i--) {
        for (int j = i + 1; j < CONSTANTS; j++) b[i] -= a[i][j] * b[j];
        b[i] /= a[i][i];
    }
}

/* The normal equations at the present constants: derivatives by differences. */
static tr_status linearise(fit *f, double a[CONSTANTS][CONSTANTS], double b[CONSTANTS])
{
    const double step = 0.02;
    int n = f->times->count;
    double *slopes = malloc(sizeof(double) * CONSTANTS * (size_t)n), unused;
    if (!slopes) return TR_NO_MEMORY;
    tr_status status = TR_OK;
    for (int c = 0; c < CONSTANTS && status == TR_OK; c++) {
        double moved[CONSTANTS];
        memcpy(moved, f->constants, sizeof moved);
        moved[c] += step;
        status = miss_all(f, moved, f->moved, &unused);
        for (int i = 0; i < n; i++) slopes[c * n + i] = (f->moved[i] - f->misses[i]) / step;
    }
    for (int c = 0; c < CONSTANTS; c++) {
        b[c] = -hold * (f->constants[c] - f->begun[c]);
        for (int i = 0; i < n; i++) b[c] -= weight(f->misses[i]) * slopes[c * n + i] * f->misses[i];
        for (int d = 0; d < CONSTANTS; d++) {
            a[c][d] = c == d ? hold : 0;
            for (int i = 0; i < n; i++) a[c][d] += weight(f->misses[i]) * slopes[c * n + i] * slopes[d * n + i];
        }
    }
    free(slopes);
    return status;
}

/* Goes downhill until it hardly gets any lower. */
static tr_status descend(fit *f)
{
    double damping = 0.1;
    tr_status status = miss_all(f, f->constants, f->misses, &f->squares);
    for (int turn = 0; turn < TURNS && damping < 1e4 && status == TR_OK; turn++) {
        double a[CONSTANTS][CONSTANTS], b[CONSTANTS], to[CONSTANTS], squares;
        status = linearise(f, a, b);
        if (status != TR_OK) break;
        for (int c = 0; c < CONSTANTS; c++) a[c][c] *= 1 + damping;
        solve(a, b);
        for (int c = 0; c < CONSTANTS; c++) to[c] = f->constants[c] + fmax(-1, fmin(1, b[c]));
        status = miss_all(f, to, f->moved, &squares);
        if (squares >= f->squares) {
            damping *= 10;
            continue;
        }
        bool settled = f->squares - squares < 1e-6 * f->squares;
        memcpy(f->constants, to, sizeof to);
        memcpy(f->misses, f->moved, sizeof(double) * (size_t)f->times->count);
        f->squares = squares;
        damping *= 0.3;
        if (settled) break;
    }
    return status;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* A small message's time is latency and overhead; the best speed seen is the links', or nearly. */
static void begin(fit *f, double copy_share)
{
    double least_us = INFINITY, most_gbytes = 0;
    for (int i = 0; i < f->times->count; i++) {
        const tr__time *t = &f->times->list[i];
        least_us = fmin(least_us, t->measured_us);
        most_gbytes = fmax(most_gbytes, (double)t->bytes / t->measured_us * 1e-3);
    }
    double constants[CONSTANTS] = {least_us / 2, least_us / 4, most_gbytes, most_gbytes * copy_share, most_gbytes * 8};
    for (int c = 0; c < CONSTANTS; c++) f->constants[c] = f->begun[c] = log(constants[c]);
}

/* Whether the links or the processors are the narrow part shows in no slope when the guess is on the wrong side, so
 * there are several beginnings. */
static tr_status fit_best(fit *f, double best[CONSTANTS])
{
    static const double copy_shares[BEGINNINGS] = {1.5, 0.75, 4};
    double least = 0;
    for (int i = 0; i < BEGINNINGS; i++) {
        begin(f, copy_shares[i]);
        TRY(descend(f));
        if (i > 0 && !(f->squares < least)) continue;
        memcpy(best, f->constants, sizeof f->constants);
        least = f->squares;
    }
    return TR_OK;
}

tr_status tr__tune_fit(tr__times *times, tr_network *network)
{
    size_t bytes = sizeof(double) * (size_t)times->count;
    fit f = {.times = times, .misses = malloc(bytes), .moved = malloc(bytes)};
    double best[CONSTANTS] = {0};
    tr_status status = f.misses && f.moved ? fit_best(&f, best) : TR_NO_MEMORY;
    free(f.misses);
    free(f.moved);
    if (status != TR_OK) return status;
    *network = network_of(best);
    for (int i = 0; i < times->count && status == TR_OK; i++)
        status = predict(&times->list[i], times->ranks, network, &times->list[i].predicted_us);
    return status;
}
