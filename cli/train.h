/* The parts of `trireme train MODEL`: what was asked for, the checks before, the launching, and the work of a rank. What
 * models have in common is here; a kind of model says the rest. */
#ifndef TRIREME_CLI_TRAIN_H
#define TRIREME_CLI_TRAIN_H

#include "options.h"

#include <trireme/tools.h>

#include <cjson/cJSON.h>

/* Set for ranks that `trireme train --ranks N` has started, to when it started itself: nanoseconds on the monotonic
 * clock. They take their options as they are, for their parent has checked them. */
#define TR__TRAIN_PARENT "TRIREME_TRAIN_STARTED"
#define TR__TRAIN_CONTENT "TRIREME_TRAIN_CONTENT" /* and what it found the data to be */

enum { TR__OPTIONS_MOST = 48 };

/* A setting that a checkpoint remembers: the option of that name. fixed: a resumed run must have the same value. */
typedef struct tr__setting {
    const char *name;
    bool fixed;
} tr__setting;

typedef struct tr__train tr__train;

/* What tells kinds of models apart. Functions that return an int return -1 when all is well, else the exit code, after a
 * message. */
typedef struct tr__train_kind {
    const char *about;      /* in the help */
    const char *data_help;  /* what --data is, and what to say when it is missing */
    const char *data_missing;
    const char *item;       /* what a step's rate counts, as in tr_metrics */
    int (*options)(tr__train *train, tr__option *options);    /* its own rows, of which it returns how many */
    const tr__setting *settings;                              /* its own; one without a name ends them */
    int (*fill_in)(tr__train *train);                         /* what was not given */
    int (*check)(tr__train *train, int64_t world);            /* sizes, data and memory; writes the train's content */
    const char *(*folder)(const tr__train *train);            /* what a folder for the results is called */
    tr_status (*model)(tr__train *train, bool fresh, tr_module **model); /* as training starts; fresh: not from a checkpoint */
    /* The trainer; what check has not read yet is read. */
    tr_status (*trainer)(tr__train *train, tr_group *group, const char *resume, tr_trainer **out);
    tr_status (*describe)(const tr__train *train, tr_tensor_list *about); /* NULL: nothing besides the settings */
    void (*introduce)(const tr__train *train);                /* the model and the data, on stderr */
    void (*report)(const tr__train *train, cJSON *object);    /* the model, for --json */
    void (*advise)(const tr__train *train);                   /* what to do with a finished training; NULL: nothing */
} tr__train_kind;

struct tr__train {
    const tr__train_kind *kind;
    const char *model;      /* "gpt", "resnet18" */
    char command[32];       /* "train gpt", for messages */
    void *own;              /* the kind's */
    /* What a checkpoint remembers, besides the kind's own settings. */
    const char *data;
    const char *init; /* weights to start from; NULL: random ones */
    int batch, micro_batch, steps, warmup;
    double lr, min_lr, momentum, weight_decay, clip;
    const char *optimizer, *dtype; /* optimizer NULL: not said yet */
    int seed;
    int eval_every, save_every, keep;
    bool keep_best, bf16_state;
    /* What holds for this run only. */
    int ranks, max_restarts, min_ranks, threads, timeout, stop_at, profile, check_replicas;
    const char *out, *json, *allow_different, *device, *backend;
    size_t made_from; /* bytes of the outermost folder of .out that this run has made; 0: all were there */
    bool resume, plain, recompute, step_in_backward, roll_back, stop_on_spike;

    tr__option options[TR__OPTIONS_MOST]; /* the command's, and which of them were among its arguments */
    uint64_t given;
    bool under_launcher, has_parent; /* this is a rank; of `trireme train` */
    int rank, world, local_ranks;    /* as the launcher says */
    int64_t started_ns;
    bool own_optimizer;  /* another one than the model's usual */
    int64_t parameters;  /* of the model; from check or trainer on */
    char content[96];    /* tells the data: a resumed run must have the same */
    char begun_with[1200]; /* what --init has loaded; "": it was not given */
    char *owned[TR__OPTIONS_MOST]; /* strings to be freed */
    int n_owned;
};

/* Fill in what is not zero by default, and own; return false for a name that is not of the kind. */
bool tr__train_text_begin(tr__train *train, const char *model);
bool tr__train_images_begin(tr__train *train, const char *model);

/* Setting i, of all models or of the kind; NULL behind the last. */
const tr__setting *tr__train_setting(const tr__train *train, int i);
/* An option's value as text, of a flag "yes"; false for a text or a flag that is not there. */
bool tr__train_value(const tr__option *option, char *text, size_t bytes);
/* Was the option among the arguments, as --name or by its letter? */
bool tr__train_given(const tr__train *train, const char *name);
/* Keeps a string that malloc made until the end; NULL when there is none, or no room. */
const char *tr__train_own(tr__train *train, char *text);

/* ---- How it is trained: train_method.c ---- */

extern const char *const tr__train_optimizers[], *const tr__train_dtypes[]; /* the options' choices, NULL behind them */
/* For a kind's fill_in: the optimizer, its learning rate, momentum and weight decay, where they were not given; lr goes with
 * the usual optimizer. -1 when all is well, else the exit code, after a message. */
int tr__train_method(tr__train *train, const char *usual, double lr);
/* For a trainer's .optimizer, with the train as its user; NULL: the trainer's usual one, as it makes it. */
tr_optimizer_maker tr__train_optimizer_maker(const tr__train *train);
tr_dtype tr__train_autocast(const tr__train *train);
/* Moves the model to this rank's device, and marks its blocks where --recompute asks for it. */
tr_status tr__train_prepare(const tr__train *train, const tr_group *group, tr_module *model);

/* Each returns -1 when all is well, else the exit code, after a message. */
int tr__train_restore(tr__train *train); /* options from the checkpoint in --out */
int tr__train_check(tr__train *train);   /* everything that can be checked before; makes the folder */
void tr__train_clear_away(const tr__train *train); /* after a failure: the folder, if this run has made it and it is empty */
/* For a kind's check: remembers what the data is; a resumed run must have the same. */
int tr__train_content(tr__train *train, const char *content);
/* How --init's file becomes the model's: as tr_load_state_dict() has it; and of the table whose name in the file ends so, only
 * the first rows are taken. NULL: no table. */
typedef struct tr__train_weights {
    const tr_rename *rename;
    const char *partial;
    const char *table;
    int64_t rows;
} tr__train_weights;
/* Loads it into a model, where it was given. */
tr_status tr__train_begin_with(tr__train *train, tr_module *model, const tr__train_weights *weights);
/* How many ranks share the machine's memory. */
int64_t tr__train_local_ranks(const tr__train *train);

/* Each returns the exit code. */
int tr__train_launch(tr__train *train); /* this program again, as --ranks ranks */
int tr__train_rank(tr__train *train);

#endif
