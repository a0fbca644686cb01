/*
 * A chart as SVG. A series with many points is drawn as the mean of each column over the band that its points fill; one
 * with few as a line through its points, marked.
 */
#include "chart.h"

#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { width = 860, height = 480, left = 70, right = 24, top = 52, bottom = 52, columns = 400, few = 60 };

static const char *const colours[] = {"#2563eb", "#dc2626", "#059669", "#d97706"};

static double at_x(const tr__chart *c, double x)
{
    return left + (x - c->x0) / (c->x1 - c->x0) * (width - left - right);
}

static double at_y(const tr__chart *c, double y)
{
    return height - bottom - (y - c->y.low) / (c->y.high - c->y.low) * (height - top - bottom);
}

static void put_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '&' || *text == '<' || *text == '>')
            fputs(*text == '&' ? "&amp;" : *text == '<' ? "&lt;" : "&gt;", to);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, to);
    }
}

static void put_grid(FILE *to, const tr__chart *c)
{
    char label[32];
    fputs("<g stroke=\"#e5e7eb\" stroke-width=\"1\">\n", to);
    for (int i = 0; i < c->y.ticks; i++) {
        double y = at_y(c, c->y.low + i * c->y.step);
        fprintf(to, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", left, y, width - right, y);
    }
    tr__chart_axis a = tr__chart_ticks(c->x0, c->x1, 8);
    for (int i = 0; i < a.ticks; i++) {
        double x = at_x(c, a.low + i * a.step);
        fprintf(to, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", x, top, x, height - bottom);
    }
    fputs("</g>\n<g fill=\"#4b5563\" font-size=\"13\">\n", to);
    for (int i = 0; i < c->y.ticks; i++) {
        double value = c->y.low + i * c->y.step;
        tr__chart_label(value, c->y.step, label);
        fprintf(to, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left - 8, at_y(c, value) + 4.5, label);
    }
    for (int i = 0; i < a.ticks; i++) {
        tr__chart_label(a.low + i * a.step, a.step, label);
        fprintf(to, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", at_x(c, a.low + i * a.step),
            height - bottom + 20, label);
    }
    fprintf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">step</text>\n</g>\n", (left + width - right) / 2,
        height - 12);
    fprintf(to, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#6b7280\" stroke-width=\"1.2\"/>\n", left, top,
        height - bottom, width - right);
}

/* The area between each column's least and greatest point. */
static void put_band(FILE *to, const tr__chart *c, const tr__column *column, const char *colour)
{
    const double step = (c->x1 - c->x0) / (columns - 1);
    char command = 'M';
    fprintf(to, "<path fill=\"%s\" fill-opacity=\"0.18\" stroke=\"none\" d=\"", colour);
    for (int i = 0; i < columns; i++) {
        if (!column[i].points) continue;
        fprintf(to, "%c%.1f %.1f", command, at_x(c, c->x0 + i * step), at_y(c, column[i].high));
        command = 'L';
    }
    for (int i = columns; i-- > 0;)
        if (column[i].points) fprintf(to, "L%.1f %.1f", at_x(c, c->x0 + i * step), at_y(c, column[i].low));
    fputs("Z\"/>\n", to);
}

static bool put_many(FILE *to, const tr__chart *c, const tr_series *series, const char *colour)
{
    tr__column *column = tr__chart_columns(c, series, columns);
    if (!column) return false;
    put_band(to, c, column, colour);
    fprintf(
        to, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-linejoin=\"round\" points=\"", colour);
    for (int i = 0; i < columns; i++)
        if (column[i].points)
            fprintf(to, "%.1f,%.1f ", at_x(c, c->x0 + i * (c->x1 - c->x0) / (columns - 1)), at_y(c, column[i].mean));
    fputs("\"/>\n", to);
    free(column);
    return true;
}

static bool drawn(const tr_series *s, int i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

static void put_few(FILE *to, const tr__chart *c, const tr_series *s, const char *colour)
{
    fprintf(
        to, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-linejoin=\"round\" points=\"", colour);
    for (int i = 0; i < s->n; i++)
        if (drawn(s, i)) fprintf(to, "%.1f,%.1f ", at_x(c, s->x[i]), at_y(c, s->y[i]));
    fprintf(to, "\"/>\n<g fill=\"%s\" stroke=\"#ffffff\" stroke-width=\"1\">\n", colour);
    for (int i = 0; i < s->n; i++)
        if (drawn(s, i)) fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", at_x(c, s->x[i]), at_y(c, s->y[i]));
    fputs("</g>\n", to);
}

/* In the upper right corner, where a loss is not. */
static void put_legend(FILE *to, const tr__chart *c)
{
    size_t longest = 0;
    for (int s = 0; s < c->count; s++)
        if (strlen(c->series[s].name) > longest) longest = strlen(c->series[s].name);
    double box = 46 + 7.6 * (double)longest, x = width - right - 10 - box;
    fprintf(to,
        "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"4\" fill=\"#ffffff\" fill-opacity=\"0.9\" "
        "stroke=\"#d1d5db\"/>\n",
        x, top + 10, box, 12 + 22 * c->count);
    for (int s = 0; s < c->count; s++) {
        int y = top + 27 + 22 * s;
        const char *colour = colours[s % 4];
        fprintf(to, "<path d=\"M%.1f %dh22\" stroke=\"%s\" stroke-width=\"2.5\"/>", x + 8, y, colour);
        fprintf(to, "<text x=\"%.1f\" y=\"%d\" font-size=\"13\" fill=\"#111827\">", x + 37, y + 4);
        put_text(to, c->series[s].name);
        fputs("</text>\n", to);
    }
}

static bool put_chart(FILE *to, const char *title, const tr_series *series, int count)
{
    fprintf(to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
        "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
        width, height, width, height, width, height);
    fprintf(to, "<text x=\"%d\" y=\"30\" font-size=\"17\" font-weight=\"bold\" fill=\"#111827\">", left);
    put_text(to, title);
    fputs("</text>\n", to);
    tr__chart c;
    bool whole = true;
    if (tr__chart_range(&c, series, count, 7)) {
        put_grid(to, &c);
        for (int s = 0; s < count; s++) {
            if (series[s].n <= few)
                put_few(to, &c, &series[s], colours[s % 4]);
            else
                whole = put_many(to, &c, &series[s], colours[s % 4]) && whole;
        }
        put_legend(to, &c);
    }
    fputs("</svg>\n", to);
    return whole;
}

tr_status tr_chart_svg(const char *path, const char *title, const tr_series *series, int count)
{
    if (!title) return tr_fail(TR_INVALID, "chart_svg: the title is NULL");
    /* A file has decimal points, whatever the program's locale writes. */
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), before = (locale_t)0;
    if (numbers) before = uselocale(numbers);
    char *text = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);
    bool whole = to && put_chart(to, title, series, count);
    if (to && fclose(to) != 0) whole = false;
    if (numbers) {
        uselocale(before);
        freelocale(numbers);
    }
    tr_status status = whole ? tr_write_file(path, text, length)
                             : tr_fail(TR_NO_MEMORY, "no memory for the chart %s", path);
    free(text);
    return status;
}

tr_status tr_chart_loss(const tr_metrics *metrics, const char *folder)
{
    char path[PATH_MAX];
    int64_t count;
    const tr_metrics_row *rows = tr_metrics_rows(metrics, &count);
    if (!count || count > INT_MAX) return tr_status_of(metrics);
    if (snprintf(path, sizeof path, "%s/loss.svg", folder) >= (int)sizeof path)
        return tr_fail(TR_INVALID, "the folder's name is too long: %.60s…", folder);
    double *points = malloc((size_t)(4 * count) * sizeof *points);
    if (!points) return tr_fail(TR_NO_MEMORY, "no memory for the chart %s", path);

    /* Step and loss of every row; of those where it was measured, step and validation loss. */
    double *x = points, *loss = x + count, *vx = loss + count, *validation = vx + count;
    int measured = 0;
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)rows[i].step;
        loss[i] = rows[i].loss;
        if (isnan(rows[i].validation_loss)) continue;
        vx[measured] = x[i];
        validation[measured++] = rows[i].validation_loss;
    }
    const tr_series series[] = {{"loss", x, loss, (int)count}, {"validation loss", vx, validation, measured}};
    tr_status status = tr_chart_svg(path, "Loss", series, 2);
    free(points);
    return status;
}
