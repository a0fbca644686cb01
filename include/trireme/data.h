/*
 * Trireme, data: text corpora and the byte tokenizer, split into training and validation parts.
 */
#ifndef TRIREME_DATA_H
#define TRIREME_DATA_H

#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A text as bytes (its tokens: 0 … 255). An object. */
typedef struct tr_text tr_text;

typedef struct tr_text_options {
    size_t size;
    const char *path;        /* a file, or a folder whose text files are read in order of their names, sub-folders too;
                                files with a NUL byte and names that start with a dot are left out */
    const char *suffixes;    /* for a folder: only names that end so, ".c .h .md"; NULL: all */
    double validation;       /* the share at the end that is for validation; 0: 0.1; TR_ZERO: none */
} tr_text_options;
#define tr_text(...) TR__NEW1(tr_text, path, __VA_ARGS__)
TR_API tr_text *tr_text_with(const tr_text_options *options);
TR_API int64_t tr_text_bytes(const tr_text *text, bool validation);
TR_API int tr_text_files(const tr_text *text);
/* A number that tells texts apart (no cryptographic one): to see whether a resumed training has the same text. */
TR_API uint64_t tr_text_hash(const tr_text *text);

typedef struct tr_text_batch_options {
    size_t size;
    tr_text *text;
    int64_t batch;           /* windows in the batch */
    int64_t context;         /* tokens in a window */
    bool validation;         /* from the validation part: window i starts at i*context. The last batch may hold fewer
                                windows; past it, TR_END */
    uint64_t seed;           /* training: window starts depend on (seed, step, first_sample + i) only, so any number */
    uint64_t step;           /* of ranks draws the same global batch */
    uint64_t first_sample;   /* the global number of the first window */
} tr_text_batch_options;
/* x, y: i32 [batch, context] on the CPU; y is x one byte later. Without TR_OK both are in error. */
#define tr_text_batch(x, y, ...) \
    tr_text_batch_with(TR__OPTIONS3(tr_text_batch_options, text, batch, context, __VA_ARGS__), (x), (y))
TR_API TR_MUST_CHECK tr_status tr_text_batch_with(const tr_text_batch_options *options, tr_tensor **x, tr_tensor **y);

#ifdef __cplusplus
}
#endif

#endif
