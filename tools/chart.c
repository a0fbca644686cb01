#include "chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* 1, 2 or 5 times a power of ten: the smallest such step with which range takes no more than ticks steps. */
static double round_step(double range, int ticks)
{
    double least = range / ticks, power = pow(10, floor(log10(least)));
    static const double factors[] = {1, 2, 5, 10};
    for (int i = 0; i < 3; i++)
        if (factors[i] * power >= least * (1 - 1e-9)) return factors[i] * power;
    return 10 * power;
}

tr__chart_axis tr__chart_ticks(double low, double high, int ticks)
{
    tr__chart_axis a = {.step = round_step(high - low, ticks)};
    a.low = ceil(low / a.step - 1e-9) * a.step;
    a.high = floor(high / a.step + 1e-9) * a.step;
    a.ticks = (int)lround((a.high - a.low) / a.step) + 1;
    return a;
}

/* As tr__chart_ticks, but around [low, high]. */
static tr__chart_axis ticks_around(double low, double high, int ticks)
{
    tr__chart_axis a = {.step = round_step(high - low, ticks)};
    a.low = floor(low / a.step + 1e-9) * a.step;
    a.high = ceil(high / a.step - 1e-9) * a.step;
    a.ticks = (int)lround((a.high - a.low) / a.step) + 1;
    return a;
}

/* A range of one value becomes one around it. */
static void widen(double *low, double *high)
{
    double least = 1e-6 * fmax(fabs(*low), fabs(*high)) + 1e-12;
    if (*high - *low >= least) return;
    double margin = *low != 0 ? 0.05 * fabs(*low) : 1;
    *low -= margin;
    *high += margin;
}

bool tr__chart_range(tr__chart *chart, const tr_series *series, int count, int y_ticks)
{
    double y0 = INFINITY, y1 = -INFINITY;
    *chart = (tr__chart){.series = series, .count = count, .x0 = INFINITY, .x1 = -INFINITY};
    for (int s = 0; s < count; s++) {
        for (int i = 0; i < series[s].n; i++) {
            double x = series[s].x[i], y = series[s].y[i];
            if (!isfinite(x) || !isfinite(y)) continue;
            chart->x0 = fmin(chart->x0, x);
            chart->x1 = fmax(chart->x1, x);
            y0 = fmin(y0, y);
            y1 = fmax(y1, y);
        }
    }
    if (!(chart->x0 <= chart->x1)) return false;
    widen(&chart->x0, &chart->x1);
    widen(&y0, &y1);
    if (!isfinite(y1 - y0) || !isfinite(chart->x1 - chart->x0)) return false;
    chart->y = ticks_around(y0, y1, y_ticks);
    return true;
}

void tr__chart_label(double value, double step, char text[32])
{
    if (fabs(value) < 1e-9 * step) value = 0;
    double unit = step >= 1e6 ? 1e6 : step >= 1e4 ? 1e3 : 1;
    const char *suffix = unit == 1e6 ? "M" : unit == 1e3 ? "k" : "";
    if (value == 0)
        snprintf(text, 32, "0");
    else if (fabs(value) >= 1e12 || step < 1e-6)
        snprintf(text, 32, "%.3g", value);
    else
        snprintf(text, 32, "%.*f%s", step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0, value / unit, suffix);
}

tr__column *tr__chart_columns(const tr__chart *chart, const tr_series *series, int columns)
{
    tr__column *column = malloc((size_t)columns * sizeof *column);
    if (!column) return NULL;
    for (int c = 0; c < columns; c++) column[c] = (tr__column){0, INFINITY, -INFINITY, 0};
    for (int i = 0; i < series->n; i++) {
        double x = series->x[i], y = series->y[i];
        if (!isfinite(x) || !isfinite(y)) continue;
        tr__column *c = &column[lround((x - chart->x0) / (chart->x1 - chart->x0) * (columns - 1))];
        c->mean += (y - c->mean) / ++c->points;
        c->low = fmin(c->low, y);
        c->high = fmax(c->high, y);
    }
    for (int c = 0; c < columns; c++)
        if (!column[c].points) column[c].mean = NAN;
    return column;
}
