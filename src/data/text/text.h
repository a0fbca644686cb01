/* The struct of tr_text, and reading files into it. */
#ifndef TR_DATA_TEXT_TEXT_H
#define TR_DATA_TEXT_TEXT_H

#include "data/content.h"
#include "data/text/tokenizer.h"

#include <trireme/data.h>

struct tr_text {
    tr__object object;
    char *path; /* as it was given, for messages */
    unsigned char *bytes; /* NULL once there are tokens */
    int64_t count, capacity;
    int64_t training;     /* bytes [0, training) are for training, the rest for validation */
    int32_t *tokens;      /* of a tokenizer; NULL: bytes are tokens */
    char tokenizer[TR__TOKENIZER_TEXT]; /* which it is; "": none */
    int64_t token_count, training_tokens; /* as count and training */
    int files;
    int with_nul, with_other_suffix; /* files of a folder that were left out */
};

/* Appends what stands at text->path: a file, or the text files of a folder. suffixes: as in tr_text_options. */
tr_status tr__text_read(tr_text *text, const char *suffixes);

/* Tokens of the text in a window: one more than the context when the model predicts the next token. */
int64_t tr__tokens_of_window(int64_t context, const tr_masking *masking);
/* How many windows follow each other in a text's validation part. */
int64_t tr__text_windows(const tr_text *text, int64_t context, const tr_masking *masking);

/* Says what a text consists of as tr__dataset_say() does, "data", and the tokenizer that cut it, "tokenizer". */
void tr__text_say(const tr_text *text, tr__facts *facts);

#endif
