/*
 * A chart of characters. The first series is a line of braille dots, 2 x 4 to a cell; the others are marks on top of
 * it, for a validation loss has few points. Where there is no UTF-8, everything is ASCII and a cell is one dot.
 */
#include "chart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct chart_look {
    int dots_x, dots_y; /* of a cell */
    const char *marks[4];
    const char *line, *vertical, *tick, *corner, *horizontal, *mark_below;
} chart_look;

static const chart_look braille = {2, 4, {"", "●", "◆", "▲"}, "⠒⠒", "│", "┤", "└", "─", "┬"};
static const chart_look ascii_look = {1, 1, {"", "o", "x", "#"}, "**", "|", "+", "+", "-", "+"};

typedef struct canvas {
    const chart_look *look;
    int columns, rows;     /* cells of the plot */
    unsigned char *dots;   /* one byte a cell: bits of a braille character, or 1 */
    unsigned char *marked; /* a cell's series, 0: none */
} canvas;

/* Unicode's order of the dots in a braille cell. */
static void set_dot(canvas *c, int x, int y)
{
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int column = x / c->look->dots_x, row = y / c->look->dots_y;
    c->dots[row * c->columns + column] |= bits[y % c->look->dots_y][x % c->look->dots_x];
}

static int dot_row(const canvas *c, const tr__chart *chart, double y)
{
    int last = c->rows * c->look->dots_y - 1;
    return (int)lround((chart->y.high - y) / (chart->y.high - chart->y.low) * last);
}

/* Means of neighbouring columns, joined. */
static bool draw_line(canvas *c, const tr__chart *chart, const tr_series *series)
{
    int width = c->columns * c->look->dots_x, before = -1;
    tr__column *column = tr__chart_columns(chart, series, width);
    if (!column) return false;
    for (int x = 0; x < width; x++) {
        if (!column[x].points) continue;
        double from = before < 0 ? column[x].mean : column[before].mean;
        int start = before < 0 ? x : before, y0 = dot_row(c, chart, from);
        for (int k = start; k <= x; k++) {
            double part = k == start ? (start == x) : (double)(k - start) / (x - start);
            int y1 = dot_row(c, chart, from + part * (column[x].mean - from));
            for (int y = y0 < y1 ? y0 : y1; y <= (y0 < y1 ? y1 : y0); y++) set_dot(c, k, y);
            y0 = y1;
        }
        before = x;
    }
    free(column);
    return true;
}

static bool draw_marks(canvas *c, const tr__chart *chart, int s)
{
    tr__column *column = tr__chart_columns(chart, &chart->series[s], c->columns);
    if (!column) return false;
    for (int x = 0; x < c->columns; x++) {
        if (!column[x].points) continue;
        int row = dot_row(c, chart, column[x].mean) / c->look->dots_y;
        c->marked[row * c->columns + x] = (unsigned char)((s - 1) % 3 + 1);
    }
    free(column);
    return true;
}

static void put_cell(FILE *to, const canvas *c, int row, int column)
{
    int at = row * c->columns + column;
    if (c->marked[at])
        fputs(c->look->marks[c->marked[at]], to);
    else if (!c->dots[at])
        fputc(' ', to);
    else if (c->look == &ascii_look)
        fputc('*', to);
    else
        fprintf(to, "\xe2%c%c", 0xa0 + (c->dots[at] >> 6), 0x80 + (c->dots[at] & 0x3f)); /* U+2800 + dots */
}

/* The tick that a row of cells stands for, or NaN: the one whose dot lies in it. */
static double tick_of_row(const canvas *c, const tr__chart *chart, int row)
{
    for (int i = 0; i < chart->y.ticks; i++) {
        double value = chart->y.low + i * chart->y.step;
        if (dot_row(c, chart, value) / c->look->dots_y == row) return value;
    }
    return NAN;
}

static void put_rows(FILE *to, const canvas *c, const tr__chart *chart, int label_width)
{
    for (int row = 0; row < c->rows; row++) {
        double tick = tick_of_row(c, chart, row);
        char label[32] = "";
        if (!isnan(tick)) tr__chart_label(tick, chart->y.step, label);
        fprintf(to, "%*s %s", label_width, label, isnan(tick) ? c->look->vertical : c->look->tick);
        int end = c->columns;
        while (end > 0 && !c->marked[row * c->columns + end - 1] && !c->dots[row * c->columns + end - 1]) end--;
        for (int column = 0; column < end; column++) put_cell(to, c, row, column);
        fputc('\n', to);
    }
}

/* The x axis with its ticks, and their labels below, each centred under its tick where there is room. */
static void put_x_axis(FILE *to, const canvas *c, const tr__chart *chart, int label_width)
{
    tr__chart_axis a = tr__chart_ticks(chart->x0, chart->x1, c->columns < 48 ? 3 : 6);
    int *position = calloc((size_t)a.ticks, sizeof *position);
    if (!position) return;
    fprintf(to, "%*s %s", label_width, "", c->look->corner);
    for (int i = 0, x = 0; x < c->columns; x++) {
        while (i < a.ticks) {
            double at = (a.low + i * a.step - chart->x0) / (chart->x1 - chart->x0);
            position[i] = (int)lround(at * (c->columns - 1));
            if (position[i] >= x) break;
            i++;
        }
        fputs(i < a.ticks && position[i] == x ? c->look->mark_below : c->look->horizontal, to);
    }
    fprintf(to, "\n%*s", label_width + 2, "");
    int used = 0;
    for (int i = 0; i < a.ticks; i++) {
        char label[32];
        tr__chart_label(a.low + i * a.step, a.step, label);
        int length = (int)strlen(label), from = position[i] - length / 2;
        if (from + length > c->columns) from = c->columns - length;
        if (from < 0) from = 0;
        if (i && from <= used) continue;
        fprintf(to, "%*s%s", from - used, "", label);
        used = from + length;
    }
    fputc('\n', to);
    free(position);
}

static int characters(const char *text)
{
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* As many series as fit below the plot. */
static void put_legend(FILE *to, const canvas *c, const tr__chart *chart, int label_width)
{
    int room = c->columns;
    fprintf(to, "%*s", label_width + 2, "");
    for (int s = 0; s < chart->count; s++) {
        const char *mark = s ? c->look->marks[(s - 1) % 3 + 1] : c->look->line, *name = chart->series[s].name;
        room -= (s ? 3 : 0) + characters(mark) + 1 + characters(name);
        if (room < 0) break;
        fprintf(to, "%s%s %s", s ? "   " : "", mark, name);
    }
    fputc('\n', to);
}

static void put_chart(FILE *to, const tr__chart *chart, int width, int height, const chart_look *look)
{
    int label_width = 0;
    for (int i = 0; i < chart->y.ticks; i++) {
        char label[32];
        tr__chart_label(chart->y.low + i * chart->y.step, chart->y.step, label);
        if ((int)strlen(label) > label_width) label_width = (int)strlen(label);
    }
    canvas c = {.look = look, .columns = width - label_width - 2, .rows = height - 3};
    if (c.columns < 8) c.columns = 8;
    size_t cells = (size_t)c.columns * (size_t)c.rows;
    c.dots = calloc(cells, 1);
    c.marked = calloc(cells, 1);
    bool drawn = c.dots && c.marked && draw_line(&c, chart, &chart->series[0]);
    for (int s = 1; s < chart->count && drawn; s++) drawn = draw_marks(&c, chart, s);
    if (drawn) {
        put_rows(to, &c, chart, label_width);
        put_x_axis(to, &c, chart, label_width);
        put_legend(to, &c, chart, label_width);
    }
    free(c.dots);
    free(c.marked);
}

static int clamp(int value, int low, int high)
{
    return value < low ? low : value > high ? high : value;
}

size_t tr_chart_text(const tr_series *series, int count, int width, int height, bool ascii, char *text, size_t bytes)
{
    char *drawn = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&drawn, &length);
    if (!to) {
        if (bytes) *text = '\0';
        return 0;
    }
    tr__chart chart;
    width = clamp(width, 24, 1000);
    height = clamp(height, 6, 400);
    if (tr__chart_range(&chart, series, count, clamp(height / 3, 2, 8)))
        put_chart(to, &chart, width, height, ascii ? &ascii_look : &braille);
    else
        fputs("(nothing to draw yet)\n", to);
    fclose(to);
    if (bytes) snprintf(text, bytes, "%s", drawn ? drawn : "");
    free(drawn);
    return length;
}
