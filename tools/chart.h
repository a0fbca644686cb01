/* What the text chart and the SVG share: the range of the data, round ticks, and points put together by column. */
#ifndef TR_TOOLS_CHART_H
#define TR_TOOLS_CHART_H

#include <trireme/tools.h>

typedef struct tr__chart_axis {
    double low, high, step; /* ticks stand at low, low + step, …, high */
    int ticks;
} tr__chart_axis;

typedef struct tr__chart {
    const tr_series *series;
    int count;
    double x0, x1; /* the data's range */
    tr__chart_axis y;    /* reaches over the data's range, to round values */
} tr__chart;

/* The points of a series that fall into one column: a mean over none is NaN. */
typedef struct tr__column {
    double mean, low, high;
    int points;
} tr__column;

/* False when there is no finite point to draw. */
bool tr__chart_range(tr__chart *chart, const tr_series *series, int count, int y_ticks);
/* Round ticks inside [low, high], about as many as asked for. */
tr__chart_axis tr__chart_ticks(double low, double high, int ticks);
/* "0.25", "1500", "20k", "1.5M": as many digits as ticks that far apart need. */
void tr__chart_label(double value, double step, char text[32]);
/* NULL without memory; to be freed. */
tr__column *tr__chart_columns(const tr__chart *chart, const tr_series *series, int columns);

#endif
