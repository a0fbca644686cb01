/*
 * Trireme, training: checkpoints in safetensors, metrics files, charts.
 */
#ifndef TRIREME_TRAIN_H
#define TRIREME_TRAIN_H

#include <trireme/tensor.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Writes list as a safetensors file, atomically: temporary file beside it, fsync, rename, fsync of the folder. When it
 * fails (a full disk, say) what stood there before is untouched and nothing is left over. */
TR_API TR_MUST_CHECK tr_status tr_safetensors_save(const char *path, const tr_tensor_list *list);
/* Reads one: tensors on the CPU, the metadata beside them. Every length and offset is checked; a damaged file is
 * TR_FORMAT with what is wrong. */
TR_API tr_tensor_list *tr_safetensors_load(const char *path);

/* Writes FOLDER/checkpoint-STEP/ with model.safetensors and state.safetensors in it, then removes all but the newest two
 * checkpoints there. The new one appears whole, under its name, or not at all: whenever the process ends, the newest
 * checkpoint is a good one. One process at a time saves into a folder. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_save(const char *folder, int64_t step, const tr_tensor_list *model,
    const tr_tensor_list *state);
/* Writes the path of the newest checkpoint in folder (or of folder itself when it is one) into path, at least 4,096
 * bytes, and its step. TR_NOT_FOUND when there is none. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_find(const char *folder, char *path, int64_t *step);
/* Loads one that tr_checkpoint_find() found. state may be NULL: then only the model is read. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state);

/* One training step in a metrics file. */
typedef struct tr_metrics_row {
    int64_t step;            /* updates done, this one included */
    int64_t tokens;          /* trained on so far */
    double lr;
    double loss;             /* of the step's batch, before its update */
    double validation_loss;  /* after the update; NaN: not measured at this step (an empty field) */
    double tokens_per_s;     /* of this step */
    double grad_norm;        /* before clipping; NaN: not measured */
    double seconds;          /* since the training began, pauses between resumed runs left out */
} tr_metrics_row;
/* A CSV file with a row per step, written row by row. An object. */
typedef struct tr_metrics tr_metrics;
/* Opens or makes one. Rows after last_step, and a last row that was cut short, are removed: a resumed run writes them
 * again. A file that is none is TR_FORMAT and stays as it is. */
TR_API tr_metrics *tr_metrics_open(const char *path, int64_t last_step);
TR_API TR_MUST_CHECK tr_status tr_metrics_add(tr_metrics *metrics, const tr_metrics_row *row);
TR_API TR_MUST_CHECK tr_status tr_metrics_sync(tr_metrics *metrics); /* to the disk */
/* All rows, those of before included; valid until the next one is added. */
TR_API const tr_metrics_row *tr_metrics_rows(const tr_metrics *metrics, int64_t *count);

/* ---- Charts and progress ----------------------------------------------------------------------------------------- */

/* A series of a line chart: n points (x[i], y[i]), x rising; those that are not finite are left out. */
typedef struct tr_series {
    const char *name;
    const double *x, *y;
    int n;
} tr_series;
/* Draws count series as text of at most width x height cells, lines ended by newlines: braille and box characters, or
 * ASCII. The first series is a line, the others are marks. Returns the length that was needed, as snprintf does. */
TR_API size_t tr_chart_text(const tr_series *series, int count, int width, int height, bool ascii, char *text,
    size_t bytes);
/* Writes the chart as an SVG file, atomically. */
TR_API TR_MUST_CHECK tr_status tr_chart_svg(const char *path, const char *title, const tr_series *series, int count);

/* Shows how training goes: in a terminal one line that is written over, elsewhere a line now and then. An object. */
typedef struct tr_progress tr_progress;
typedef struct tr_progress_options {
    size_t size;
    FILE *to;
    bool plain;         /* lines even in a terminal */
    bool ascii;
    double interval_s;  /* the least time between two updates; 0: 0.1 in a terminal, else 10 */
} tr_progress_options;
#define tr_progress(...) TR__NEW1(tr_progress, to, __VA_ARGS__)
TR_API tr_progress *tr_progress_with(const tr_progress_options *options);
/* To be called after each of `steps` steps. */
TR_API void tr_progress_step(tr_progress *progress, const tr_metrics_row *row, int64_t steps);
/* Prints a line of text, above the bar. */
TR_API void tr_progress_note(tr_progress *progress, const char *text);
/* Ends the bar's line, with the last state in it. */
TR_API void tr_progress_end(tr_progress *progress);

#ifdef __cplusplus
}
#endif

#endif
