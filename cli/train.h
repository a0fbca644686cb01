/* The parts of `trireme train gpt`: what was asked for, the checks before, the launching, and the work of a rank. */
#ifndef TRIREME_CLI_TRAIN_H
#define TRIREME_CLI_TRAIN_H

#include <trireme/trireme.h>

#define TR__TRAIN "train gpt" /* in messages */

/* Set for ranks that `trireme train --ranks N` has started, to when it started itself: nanoseconds on the monotonic
 * clock. They take their options as they are, for their parent has checked them. */
#define TR__TRAIN_PARENT "TRIREME_TRAIN_STARTED"
#define TR__TRAIN_TEXT "TRIREME_TRAIN_TEXT" /* and what it found the text to be */

typedef struct tr__train {
    /* What a checkpoint remembers. */
    const char *data, *suffixes, *preset;
    int layers, heads, dim, context;
    double dropout;
    int batch, micro_batch, steps, warmup;
    double lr, min_lr, weight_decay, clip;
    int seed;
    int eval_every, save_every;
    /* What holds for this run only. */
    int ranks, threads, stop_at;
    const char *out, *json;
    bool resume, plain;

    const char *const *given;        /* the command's arguments */
    bool under_launcher, has_parent; /* RANK is set; by `trireme train` */
    int64_t started_ns;
    char text_id[64]; /* the text's length and hash: a resumed run must have the same one */
    char *owned[8];   /* strings to be freed */
    int n_owned;
} tr__train;

/* A setting that a checkpoint remembers: an option of the same name. fixed: a resumed run must have the same value. */
typedef struct tr__setting {
    const char *name;
    enum { TR__SETTING_INTEGER, TR__SETTING_NUMBER, TR__SETTING_TEXT } type;
    void *value;
    bool fixed;
} tr__setting;
enum { TR__SETTINGS = 19 };
void tr__train_settings(tr__train *train, tr__setting settings[TR__SETTINGS]);
/* The value as text; false for a text that is not there. */
bool tr__setting_text(const tr__setting *setting, char *text, size_t bytes);
/* Was --name among the arguments? */
bool tr__train_given(const tr__train *train, const char *name);
/* Keeps a string that malloc made until the end; NULL when there is none, or no room. */
const char *tr__train_own(tr__train *train, char *text);

/* Each returns -1 when all is well, else the exit code, after a message. */
int tr__train_restore(tr__train *train);               /* options from the checkpoint in --out */
int tr__train_check(tr__train *train, tr_text **text); /* everything that can be checked before; makes the folder */

/* Each returns the exit code. */
int tr__train_launch(tr__train *train);              /* this program again, as --ranks ranks */
int tr__train_rank(tr__train *train, tr_text *text); /* text NULL: to be read */

/* The model's options, and its parameters. */
tr_gpt_options tr__train_model(const tr__train *train);
int64_t tr__gpt_parameters(const tr_gpt_options *options);
tr_text *tr__train_text(const tr__train *train);

#endif
