/* The struct of tr_trainer: what all trainings have in common, and the task in which they differ. */
#ifndef TR_TRAIN_TRAINER_H
#define TR_TRAIN_TRAINER_H

#include "base/object.h"
#include "comm/group/agree.h"
#include "data/loader.h"
#include "train/file_record.h"

#include <trireme/optim.h>
#include <trireme/train.h>

#include <math.h>
#include <sys/stat.h>

/* The settings of every trainer, with the defaults filled in. */
typedef struct tr__plan {
    tr_module *model;
    tr_group *group;        /* or NULL */
    int64_t batch;          /* samples in a step, of all ranks together */
    int64_t micro_batch;    /* 0: a rank's share */
    int64_t steps, warmup_steps;
    double lr, min_lr, clip; /* clip 0: any norm */
    uint64_t seed;
    const char *resume;     /* or NULL */
    tr_dtype autocast;      /* 0: the caller's */
    tr_optimizer_maker optimizer; /* NULL: the task's */
    tr_batch_loss loss;     /* NULL: cross-entropy of what the model gives */
    void *user;
    bool step_in_backward, step_after_backward; /* neither: in backward where it can be */
    const char *allow_different; /* or NULL */
    int64_t check_replicas; /* steps between two comparisons of all ranks; 0: none */
    bool stop_on_spike;
    tr__call_site place;    /* where the trainer is made: its steps outside tr_fit() are told as made there */
} tr__plan;

/* The plan of options o, for the settings that all trainers name alike; a trainer's own follow. */
#define TR__PLAN(o, ...)                                                                                                 \
    (&(const tr__plan){.model = (o)->model, .group = (o)->group, .micro_batch = (o)->micro_batch,                        \
        .warmup_steps = (o)->warmup_steps, .seed = (o)->seed, .resume = (o)->resume, .autocast = (o)->autocast,          \
        .optimizer = (o)->optimizer, .user = (o)->user, .step_in_backward = (o)->step_in_backward,                       \
        .step_after_backward = (o)->step_after_backward,                                                                 \
        .allow_different = (o)->allow_different, .check_replicas = TR__OR(o, check_replicas, TR__CHECK_EVERY),           \
        .stop_on_spike = (o)->stop_on_spike, .place = {(o)->file, (o)->line}, __VA_ARGS__})

/* Where a trainer's batches come from, and how its model is validated. */
typedef struct tr__task {
    const char *item;       /* what is counted: "token", "sample" */
    bool accuracy;          /* validation gives one */
    tr_optimizer *(*optimizer)(tr_trainer *trainer);
    /* Samples [at, at + n) of this rank's share of the step's batch; asked for in order, from 0. */
    tr_status (*batch)(tr_trainer *trainer, int64_t at, int64_t n, tr_tensor **x, tr_tensor **y);
    /* On every rank the score of the whole; a loss of NaN when there is nothing to validate. */
    tr_status (*validate)(tr_trainer *trainer, tr_score *score);
    /* As tr__loader_stop_when(), for what the two above wait for; NULL: for nobody. */
    void (*stop_when)(tr_trainer *trainer, tr__stop_wanted wanted, void *user);
    int64_t (*skipped)(tr_trainer *trainer); /* bad samples, on this rank; NULL: the task has no bad samples */
    void (*destroy)(tr_trainer *trainer);
    void (*say)(tr_trainer *trainer, tr__facts *facts); /* its data and settings, which ranks compare (settings.c) */
} tr__task;

/* What a rank exchanges with the others after its part of a step. */
typedef struct tr__said {
    double loss; /* its part of the batch's */
    double stop; /* 1: it wants to stop */
    double norm; /* of the gradients as they are after averaging; NaN: not known */
    double own;  /* of its own, before averaging, where ranks step in backward; NaN: not known */
} tr__said;

enum { TR__NORMS = 100 };
/* Norms of the latest steps, by which a spike is recognized. */
typedef struct tr__norms {
    double last[TR__NORMS];
    int64_t count; /* so far */
    bool spiking;  /* the latest one was a spike */
} tr__norms;

struct tr_trainer {
    tr__object object;
    const tr__task *task;
    tr__plan plan;              /* model and group are kept */
    int64_t items;              /* in a sample */
    tr_module *net;             /* kept; the model, or DDP around it */
    tr_optimizer *optimizer;    /* kept */
    bool may_step_in_backward;  /* on all ranks, as far as is known from the start */
    bool in_backward;           /* it steps there, in this step */
    tr_device device;           /* of the model, or where it begins */
    int rank, world_size;
    int64_t first, share;       /* this rank's samples of each batch: [first, first + share) */
    int64_t step;               /* steps done */
    tr__said *said;             /* [world_size], of the latest step */
    tr__norms norms;

    /* What a checkpoint also holds. */
    tr_metrics *metrics;    /* rank 0's, kept: a row for each step of tr_fit(); NULL elsewhere */
    int64_t validated_step; /* of the latest validation; 0: none yet */
    double seconds;
    double validation_loss, best_validation_loss; /* NaN: not yet */
    double validation_accuracy, best_validation_accuracy;

    int64_t saved_at; /* the step of the checkpoint that it goes on from, or has saved since; -1: none */
    struct stat saved_in; /* the folder that holds that checkpoint, rank 0's */
    int64_t passed_over;  /* damaged checkpoints, by rank 0 */
    int64_t agreed_step;  /* after which replicas were alike for certain: compared, or made so */
    bool replicas_differ; /* as the latest comparison found */
    bool common_failure; /* see tr_fit_report */
    char settings[TR__SHA256_TEXT]; /* of what ranks compare, but for what belongs to the run: its checkpoints carry it */
};

/* A task's part of making a trainer: fills in its work from its options, calls tr__trainer_check(), then checks them. */
typedef tr_status (*tr__trainer_fill)(tr_trainer *trainer, const void *options);
/* A trainer for the task, followed by work_bytes of zeroed memory for the task's work. Loads the checkpoint if there is one to
 * resume from, and makes net and optimizer. May be in error. */
tr_trainer *tr__trainer_new(const tr__task *task, const tr__plan *plan, size_t work_bytes, tr__trainer_fill fill,
    const void *options);
static inline void *tr__trainer_work(tr_trainer *trainer) { return trainer + 1; }
/* Checks the plan. */
tr_status tr__trainer_check(const tr_trainer *trainer);

/* In settings.c. Compares what all ranks must be told alike, .allow_different left out, in one exchange: TR_MISMATCH on all
 * ranks names what differs, with its values. The optimizer has been made, unless `own` is the failure of this rank, of which the others
 * hear (comm/group/agree.h). */
tr_status tr__trainer_compare(tr_trainer *trainer, tr_status own);
/* May a setting differ? Then a task need not compute it. */
bool tr__trainer_may_differ(const tr_trainer *trainer, const char *name);

/* A batch's mean loss, of the model or DDP around it. */
tr_tensor *tr__trainer_loss(const tr_trainer *trainer, tr_module *net, tr_tensor *x, tr_tensor *y);

/* Forward and backward of n samples from this rank's sample `at` on, exchange: and the ranks' gradients are averaged, or, where the
 * optimizer steps in backward, used up.
 * Adds the samples' part of the batch's loss to *loss. */
tr_status tr__trainer_learn(tr_trainer *trainer, int64_t at, int64_t n, bool exchange, double *loss);

/* TR_UNSUPPORTED for an optimizer whose state is sharded over the ranks. */
tr_status tr__trainer_check_unsharded(const tr_trainer *trainer);

/* Returns status. A failure of this rank alone breaks the group, as the others wait, or will, for what it was to do. */
tr_status tr__trainer_tell(const tr_trainer *trainer, tr_status status);
/* In trainer_state.c: tr_trainer_save() into a folder that is open; -1: by its name. */
tr_status tr__trainer_save(tr_trainer *trainer, int folder_fd, const tr_trainer_save_options *options);
/* Going on from a checkpoint in a folder, which is rank 0's: the model on rank 0, before DDP makes it everybody's; and
 * the rest on every rank. */
tr_status tr__trainer_resume_model(tr_trainer *trainer, const char *folder, tr_tensor_list **state);
tr_status tr__trainer_resume_state(tr_trainer *trainer, const tr_tensor_list *state);
/* The same on the way: model, optimizer, metrics and step of every rank become those of the folder's newest whole
 * checkpoint. */
tr_status tr__trainer_go_back(tr_trainer *trainer, const char *folder);

/* In fit.c, for qsort(): doubles, rising. */
int tr__by_value(const void *a, const void *b);

#endif
