/*
 * Trireme, training: checkpoints in safetensors, metrics files, charts.
 */
#ifndef TRIREME_TRAIN_H
#define TRIREME_TRAIN_H

#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes list as a safetensors file, atomically: temporary file beside it, fsync, rename, fsync of the folder. When it
 * fails (a full disk, say) what stood there before is untouched and nothing is left over. */
TR_API TR_MUST_CHECK tr_status tr_safetensors_save(const char *path, const tr_tensor_list *list);
/* Reads one: tensors on the CPU, the metadata beside them. Every length and offset is checked; a damaged file is
 * TR_FORMAT with what is wrong. */
TR_API tr_tensor_list *tr_safetensors_load(const char *path);
/* A line chart of n points (x[i], y[i]), several series; text for a terminal (width x height cells), or an SVG file. */
typedef struct tr_series {
    const char *name;
    const double *x, *y;
    int n;
} tr_series;
TR_API size_t tr_chart_text(const tr_series *series, int count, int width, int height, char *text, size_t bytes);
TR_API TR_MUST_CHECK tr_status tr_chart_svg(const char *path, const char *title, const tr_series *series, int count);

#ifdef __cplusplus
}
#endif

#endif
