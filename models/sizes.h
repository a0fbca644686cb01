/* Sizes of models: defaults, and presets with names. */
#ifndef TRIREME_MODELS_SIZES_H
#define TRIREME_MODELS_SIZES_H

#include <trireme/nn.h>

/* An option's value, or its default when it was not given. */
#define TR__SIZE_OR(o, field, otherwise) ((o)->field || tr_given((o), #field) ? (o)->field : (otherwise))

enum { TR__PRESET_SIZES = 6 };
typedef struct tr__preset {
    const char *name; /* NULL ends a table */
    int sizes[TR__PRESET_SIZES];
} tr__preset;
/* Writes the preset's sizes where `into` points, until NULL. TR_NOT_FOUND names those there are. */
tr_status tr__preset_fill(const char *model, const tr__preset *presets, const char *name, int *const *into);

#endif
