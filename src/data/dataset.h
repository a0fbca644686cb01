/*
 * The struct of tr_dataset. A kind of dataset either makes samples as tensors, or, when all samples are laid out alike,
 * writes them straight to their place in a batch.
 */
#ifndef TR_DATA_DATASET_H
#define TR_DATA_DATASET_H

#include "tensor/tensor.h"

#include <trireme/data.h>

#include <string.h>

/* Of a sample, and of a batch: x, y, more[0], … */
enum { TR__FIELDS = 2 + TR_SAMPLE_MORE };
static inline tr_tensor **tr__field(tr_sample *sample, int field)
{
    return field == 0 ? &sample->x : field == 1 ? &sample->y : &sample->more[field - 2];
}
/* "x", "y", "more[0]", …, for messages. */
const char *tr__field_name(int field);

/* What a field of every sample looks like. */
typedef struct tr__layout {
    bool present; /* otherwise samples do not have it */
    tr_shape shape;
    tr_dtype dtype;
} tr__layout;

struct tr__content;

/* get or write, and destroy, which releases what the state holds. */
typedef struct tr__dataset_kind {
    tr_status (*get)(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out);
    tr_status (*write)(tr_dataset *set, int64_t index, void *const places[TR__FIELDS]); /* NULL: samples have no such field */
    void (*destroy)(tr_dataset *set);
    void (*sum)(tr_dataset *set, struct tr__content *content); /* adds the data that the samples are made of */
} tr__dataset_kind;

/* How another process makes the dataset again. */
typedef struct tr__source {
    tr_dataset_make make;
    int64_t count; /* samples that it has made here */
    size_t bytes;
    unsigned char argument[];
} tr__source;

struct tr_dataset {
    tr__object object;
    const tr__dataset_kind *kind;
    const char *name; /* for messages; whoever holds it lives as long as the set */
    int64_t count;
    tr__layout fields[TR__FIELDS]; /* where x is present, of all samples: then write() is there, otherwise get() */
    const tr__source *source; /* NULL: only this process has it */
    int64_t source_begin;     /* its samples are [source_begin, source_begin + count) of what source makes */
    bool owns_source;
};

/* A dataset of a kind, with zeroed state of some bytes behind it; may be in error. */
tr_dataset *tr__dataset_new(const tr__dataset_kind *kind, const char *name, size_t state_bytes);
static inline void *tr__dataset_state(tr_dataset *set) { return set + 1; }

/* Says how set is made again: with a copy of the argument. On failure it is in error. */
void tr__dataset_set_source(tr_dataset *set, tr_dataset_make make, const void *argument, size_t bytes);
/* The argument is some options (at most 512 bytes) and the folder's full path behind them. */
void tr__dataset_set_folder(tr_dataset *set, tr_dataset_make make, const void *options, size_t bytes,
    const char *folder);
/* make_again(), which makes the set from that by function(&options). */
#define TR__MAKE_AGAIN(function, options_type)                               \
    static tr_dataset *make_again(const void *argument, size_t bytes)        \
    {                                                                        \
        (void)bytes;                                                         \
        options_type options;                                                \
        memcpy(&options, argument, sizeof options);                          \
        options.folder = (const char *)argument + sizeof options;            \
        return function(&options);                                           \
    }

static inline bool tr__laid_out(const tr_dataset *set) { return set->fields[0].present; }
static inline size_t tr__layout_bytes(const tr__layout *layout)
{
    return (size_t)tr__numel(layout->shape) * tr_dtype_size(layout->dtype);
}

/* One sample as sound CPU tensors of the innermost scope. A failure's message names the sample. */
tr_status tr__dataset_sample(tr_dataset *set, int64_t index, uint64_t seed, tr_sample *out);
/* Adds what a set consists of (data/content.h). */
void tr__dataset_sum(tr_dataset *set, struct tr__content *content);
/* Puts the sample before this thread's latest failure. Returns status. */
tr_status tr__sample_failed(const tr_dataset *set, int64_t index, tr_status status);
/* The seed of a sample's random numbers; epoch_seed is tr__mix(seed, epoch). */
uint64_t tr__sample_seed(uint64_t epoch_seed, int64_t index);

/* Takes images: u8 [n, channels, height, width] and labels: u8 [n], both sound; samples are x: [channels, height,
 * width], f32 in 0 … 1 or (raw) u8, and y: i64, a scalar. */
tr_dataset *tr__byte_images(const char *name, tr_tensor *images, tr_tensor *labels, bool raw);
/* A dataset in error with this thread's latest failure. */
tr_dataset *tr__dataset_failed(void);

#endif
