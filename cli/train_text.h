/* What `trireme train gpt` and `trireme train bert` have in common: a language model on a text, in bytes or in tokens. A
 * kind of language model says the rest. */
#ifndef TRIREME_CLI_TRAIN_TEXT_H
#define TRIREME_CLI_TRAIN_TEXT_H

#include "train.h"

typedef struct tr__language_size {
    int vocab, context, layers, heads, dim;
    double dropout;
    uint64_t seed;
} tr__language_size;

/* What goes with a preset's size. */
typedef struct tr__language_preset {
    const char *name;
    int batch, steps, warmup, save_every;
    double lr;
} tr__language_preset;

typedef struct tr__language {
    const char *name;      /* "gpt" */
    const char *title;     /* "GPT" */
    const char *about;     /* in the help, as the next one */
    const char *tokenizer_help;
    bool pairs_only;       /* its tokens are to be the text's own bytes, put together: no word pieces */
    int byte_vocab;        /* without a tokenizer: the bytes, and special tokens behind them */
    const tr__language_preset *presets; /* nano first; one without a name ends them */
    tr_status (*preset)(const char *name, tr__language_size *size); /* writes context, layers, heads and dim */
    tr_module *(*build)(const tr__language_size *size);
    int64_t (*parameters)(const tr__language_size *size);
    double (*window_bytes)(const tr__language_size *size); /* what forward keeps for backward, for one window */
    const tr_rename *rename; /* what tensors of a file of Hugging Face's are called here */
    const char *positions;   /* the table of places, of which --init takes as many as --context says */
    /* How windows are masked, with tokens (NULL: bytes); NULL: the model predicts the next token. */
    tr_status (*masking)(const tr_tokenizer *tokens, tr_masking *masking);
    tr_batch_loss loss;      /* NULL: cross-entropy of each token */
    void (*advise)(const tr__train *train); /* or NULL */
} tr__language;

extern const tr__language tr__language_gpt, tr__language_bert;

#endif
