/*
 * Trireme, training: language models, checkpoints in safetensors, metrics files.
 */
#ifndef TRIREME_TRAIN_H
#define TRIREME_TRAIN_H

#include <trireme/data.h>
#include <trireme/parallel.h>

#include <stdio.h> /* programs expect it of trireme.h */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* Replaces a file atomically: temporary file beside it, fsync, rename, fsync of the folder. When it fails (a full disk,
 * say) what stood there before is untouched and nothing is left over. */
TR_API TR_MUST_CHECK tr_status tr_write_file(const char *path, const void *data, size_t bytes);

/* Writes list as a safetensors file, atomically. */
TR_API TR_MUST_CHECK tr_status tr_safetensors_save(const char *path, const tr_tensor_list *list);
/* Reads one: tensors on the CPU, the metadata beside them. Every length and offset is checked; a damaged file is
 * TR_FORMAT with what is wrong. */
TR_API tr_tensor_list *tr_safetensors_load(const char *path);

/* NumPy's .npy files: one tensor, on the CPU. Read are versions 1.0 to 3.0, both orders of elements and of bytes; written
 * is what numpy.save() writes, atomically. NumPy has no bf16. */
TR_API TR_MUST_CHECK tr_status tr_npy_save(const char *path, const tr_tensor *t);
TR_API tr_tensor *tr_npy_load(const char *path);
/* NumPy's .npz archives of such arrays by name, stored or compressed, as numpy.savez() and numpy.savez_compressed() write
 * them. The list's metadata stays behind. */
typedef struct tr_npz_save_options {
    size_t size;
    const char *given;
    const char *path;
    const tr_tensor_list *list;
    bool compress;
} tr_npz_save_options;
#define tr_npz_save(...) TR__NEW2(tr_npz_save, path, list, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_npz_save_with(const tr_npz_save_options *options);
typedef struct tr_npz_load_options {
    size_t size;
    const char *given;
    const char *path;
    int64_t max_bytes; /* the most bytes that its arrays unpack to; 0: 64 MiB or 32 times its own, whichever is more */
} tr_npz_load_options;
/* An archive with more than .max_bytes is TR_FORMAT before an array is unpacked: a crafted one grows a thousandfold. */
#define tr_npz_load(...) TR__NEW1(tr_npz_load, path, __VA_ARGS__)
TR_API tr_tensor_list *tr_npz_load_with(const tr_npz_load_options *options);

/* One training step in the metrics. */
typedef struct tr_metrics_row {
    int64_t step;            /* updates done, this one included */
    int64_t items;           /* trained on so far: tokens of a text, samples of a dataset */
    double lr;
    double loss;             /* of the step's batch, before its update */
    double validation_loss;  /* after the update; NaN: not measured at this step (an empty field) */
    double items_per_s;      /* of this step */
    double grad_norm;        /* before clipping; NaN: not measured */
    double seconds;          /* since the training began, pauses between resumed runs left out */
    double validation_accuracy; /* 0 … 1, with validation_loss; NaN: not measured */
} tr_metrics_row;
/* The rows of a training, and a CSV file of them that is written row by row. An object. */
typedef struct tr_metrics tr_metrics;

typedef struct tr_checkpoint_save_options {
    size_t size;
    const char *given;
    const char *folder;
    int64_t step;
    const tr_tensor_list *model, *state;
    const tr_metrics *metrics; /* NULL: none */
    const double *loss;        /* the validation loss after this step; NULL: none was measured */
    int keep;                  /* how many of the newest checkpoints stay, 1 to 1,000; default 2 */
    bool keep_best;            /* the one with the least validation loss stays, too */
} tr_checkpoint_save_options;
/*
 * Writes FOLDER/checkpoint-STEP/, which is made if need be: model.safetensors, state.safetensors, with .metrics their rows in
 * history.safetensors, and last manifest.json. The manifest holds the size and SHA-256 of each file, the CRC-32C of each tensor,
 * and the save's identifier, which all its files carry in their metadata (docs/trust.md).
 *
 * Then it removes older checkpoints, but .keep and .keep_best; what cannot be removed stays, with a warning in the log. The new one
 * appears whole, under its name, or not at all: whenever the process ends, the newest checkpoint is a good one. One process at a
 * time saves into a folder.
 */
#define tr_checkpoint_save(...) TR__NEW4(tr_checkpoint_save, folder, step, model, state, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_checkpoint_save_with(const tr_checkpoint_save_options *options);
/* Writes the path of the newest checkpoint in folder (or of folder itself when it is one) into path, at least 4,096
 * bytes, and its step (-1 when the name of folder itself does not say it). TR_NOT_FOUND when there is none. After any
 * failure path and step are as they were. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_find(const char *folder, char *path, int64_t *step);
/* The same, of those that are whole: each is read and held against its manifest, the newest first. A damaged one is passed over,
 * and the log says what is wrong with it. TR_FORMAT when none is whole: the message is about the newest. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_find_whole(const char *folder, char *path, int64_t *step);
/* Loads one that tr_checkpoint_find() found. state may be NULL: then only the model is read. What is read is held against the manifest:
 * a difference is TR_FORMAT, with the file, the tensor, and where in the file it lies. A checkpoint that was never given a manifest (safetensors from
 * elsewhere) loads with a warning in the log that nothing was verified. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state);

/* A part of a checkpoint as it was found: a tensor, or a file after its tensors. */
typedef struct tr_checkpoint_part {
    const char *file;         /* "model.safetensors" */
    const char *tensor;       /* NULL: the file */
    int64_t begin, end;       /* its bytes in the file */
    tr_dtype dtype;           /* of a tensor, */
    tr_shape shape;
    int64_t nans, infinities; /* and how many of its numbers are not finite; those of the history do not count: there NaN is "not measured" */
    int64_t first_not_finite; /* the index of the first of them, row-major; -1: there is none */
    const char *damage;       /* what is wrong with it, with its path and bytes; NULL: nothing */
} tr_checkpoint_part;

typedef struct tr_checkpoint_report {
    bool has_manifest;        /* false: nothing was there to hold the bytes against, and the next five say nothing */
    int64_t step;
    double loss;              /* the validation loss; NaN: none was measured */
    char save[40];            /* identifies the save */
    char version[24];         /* of Trireme, that saved it */
    char settings[72];        /* SHA-256 of the model's metadata */
    int files, tensors;       /* that were read */
    int64_t bytes;
    int damaged;              /* parts that are */
    int not_finite;           /* tensors with NaN or infinities */
    tr_tensor_list *about;    /* the model's metadata, without tensors; of the innermost scope */
} tr_checkpoint_report;

typedef struct tr_checkpoint_verify_options {
    size_t size;
    const char *given;
    const char *path;                                              /* a checkpoint, or a safetensors file alone */
    tr_checkpoint_report *report;                                  /* filled in, also on failure; or NULL */
    void (*on_part)(const tr_checkpoint_part *part, void *user);   /* for each part, in the files' order; or NULL */
    void *user;
} tr_checkpoint_verify_options;
/* Reads a checkpoint through, without keeping it, and holds all of it against its manifest: the header and each tensor of model, state
 * and history by their CRC-32C, each file by its SHA-256. A file alone is held against the manifest beside it, if that has it. Damage
 * is TR_FORMAT; the message is about the first part that is damaged, and the rest is read all the same. Numbers that are not finite
 * were saved so: they are told, and are no damage. */
#define tr_checkpoint_verify(...) TR__NEW1(tr_checkpoint_verify, path, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_checkpoint_verify_with(const tr_checkpoint_verify_options *options);

typedef struct tr_metrics_options {
    size_t size;
    const char *given;
    const char *path;
    const char *checkpoint;  /* one that tr_checkpoint_find() found: its rows come first; NULL: none */
    const char *item;        /* what the columns "tokens" and "tokens_per_s" count; NULL: "token" */
    bool accuracy;           /* with a column validation_accuracy */
} tr_metrics_options;
/* Metrics with the rows of a checkpoint, which a resumed training goes on behind, or without any. The file is written
 * anew, whole or not at all: it is never read for rows, so that damage to it is no damage to the training. Without rows
 * it replaces metrics only: another file of that name is TR_FORMAT and stays. */
#define tr_metrics_open(...) tr_metrics_open_with(TR__NAMED_OPTIONS1(tr_metrics_options, path, __VA_ARGS__))
TR_API tr_metrics *tr_metrics_open_with(const tr_metrics_options *options);
/* Appends a row, of a later step than the one before. TR_INVALID for numbers that none can have (a negative count, an
 * accuracy of 2). */
TR_API TR_MUST_CHECK tr_status tr_metrics_add(tr_metrics *metrics, const tr_metrics_row *row);
/* Brings the file to the disk; writes it again where it was removed or replaced. */
TR_API TR_MUST_CHECK tr_status tr_metrics_sync(tr_metrics *metrics);
/* All rows, those of before included; valid until the next one is added. */
TR_API const tr_metrics_row *tr_metrics_rows(const tr_metrics *metrics, int64_t *count);

/* ---- Evaluation -------------------------------------------------------------------------------------------------- */

typedef struct tr_score {
    double loss;        /* the mean */
    double accuracy;    /* correct / count; NaN when y are no classes */
    int64_t count;      /* targets that count: samples, or when there is one in each place of a sequence, places; those that
                           cross-entropy ignores (-100) are left out */
    int64_t correct;    /* of these, where the output is largest at the target */
} tr_score;

typedef struct tr_evaluate_options {
    size_t size;
    const char *given;
    tr_module *net;
    tr_loader *loader;
    tr_group *group;        /* whose ranks share the samples (as the loader's .group): all get the whole's score */
    tr_loss_function loss;  /* NULL: cross-entropy of outputs [..., classes] with i64 or i32 y: [...] */
    void *user;             /* for loss */
    tr_score *score;
} tr_evaluate_options;
/* Goes through an epoch of the loader, from its start also when one is under way, with net in eval mode and without a graph, y moved to where the outputs are; its
 * modules are then in the modes that they were in. Duplicates, which make ranks even, are not counted: any number of ranks
 * gives the same score, to rounding. A failure on one rank fails on all. */
#define tr_evaluate(...) tr_evaluate_with(TR__BRACES2(tr_evaluate_options, net, loader, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_evaluate_with(const tr_evaluate_options *options);

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* A model, its optimizer under a cosine schedule with warm-up, what it learns from and the ranks that share the work. */
typedef struct tr_trainer tr_trainer;

/* Makes the optimizer of a trainer: of the model's parameters, where they lie in the end. The schedule sets its lr.
 * A sharded one trains, but a trainer has no checkpoints of it: TR_UNSUPPORTED with .resume, and from tr_fit() with .folder. */
typedef tr_optimizer *(*tr_optimizer_maker)(tr_tensor_list *parameters, void *user);

/* A batch's mean loss, of what net makes of x, and y. */
typedef tr_tensor *(*tr_batch_loss)(tr_module *net, tr_tensor *x, tr_tensor *y, void *user);

/* A language model on a text, by AdamW. */

typedef struct tr_trainer_options {
    size_t size;
    const char *given;
    tr_module *model;           /* i32 [batch, context] -> logits [batch, context, vocabulary] */
    tr_text *text;
    tr_group *group;            /* NULL: this process alone */
    int64_t context;            /* tokens in a window; default 256 */
    int64_t global_batch;       /* windows in a step, of all ranks together (any number sees the same ones); default 12 */
    int64_t micro_batch;        /* the most windows that a rank computes at once; 0: its share of the batch */
    int64_t steps;              /* of the schedule; default 2,000 */
    int64_t warmup_steps;       /* 0: none */
    double lr, min_lr;          /* default 1e-3, lr / 10 */
    double beta1, beta2;        /* default 0.9, 0.99 */
    double weight_decay;        /* of matrices; default 0.1 */
    double clip;                /* the most that the gradients' norm may be; default 1; 0: any */
    uint64_t seed;              /* for batches and dropout */
    int64_t validation_windows; /* the most that a validation looks at; default 2,048 */
    const tr_masking *masking;  /* a masked language model, as BERT; NULL: the next token is to be said. Copied */
    const char *resume;         /* a folder of checkpoints, or one: training goes on from there. Read by rank 0 only */
    tr_dtype autocast;          /* TR_BF16 or TR_F16: forward runs under it, parameters and optimizer stay f32; 0: under the
                                   caller's, where there is one */
    tr_optimizer_maker optimizer; /* NULL: AdamW, with beta1, beta2 and weight_decay */
    void *user;                 /* for optimizer and loss */
    tr_batch_loss loss;         /* NULL: tr_cross_entropy(tr_forward(net, x), y). net is the model, or DDP around it */
    bool step_in_backward;      /* tr_step_in_backward(): no memory for all gradients. Of one rank, without clipping, and with
                                   the batch computed at once */
    const char *allow_different; /* settings that ranks may be told differently: "lr, data"; NULL: none */
    int64_t check_replicas;     /* steps; default 100; 0: never (a binding: -1). So often, and before tr_fit() saves, the ranks'
                                   parameters, buffers and optimizer's state (unless it is sharded) are compared bit for bit:
                                   TR_MISMATCH on every rank names the odd ranks, the first tensor, and the step after which
                                   all were alike. With TRIREME_CHECK=replicas, unless this is 0, after every step */
    bool stop_on_spike;         /* a gradient's norm of more than 1,000 times the median of the last 100 (of 20 at least) is
                                   a warning in the log, with the rank and the parameter that it comes from. This makes it
                                   TR_INVALID, and nothing is applied */
} tr_trainer_options;
/* Ranks first compare what they were told, in one exchange, before anything is read from a checkpoint, exchanged or
 * written. Where it differs the trainer is in error on every rank, with TR_MISMATCH, and the message shows each value with
 * its ranks: "trainer: ranks differ: lr is 0.001 on rank 0, 0.01 on rank 1". Compared are, under these names,
 *
 *   model       its modules, their parameters and buffers: kinds, details, shapes, dtypes, which are frozen
 *   data        of a text, size and CRC-32C (beyond 64 MiB, of a sample), and tokenizer, its vocabulary and merges;
 *               of a dataset, length and contents, and three samples where a function makes them; validation, as data
 *   optimizer   its rule and settings, as optimizer.beta1 and optimizer.weight_decay, and its parameter groups
 *   loss, global_batch, steps, warmup_steps, lr, min_lr, clip, seed, autocast, resume (whether), allow_different,
 *   check_replicas, stop_on_spike
 *   context, validation_windows, masking of a text; on_bad of a classifier
 *
 * .allow_different takes names from these, "optimizer" with all that is below it. Not compared are micro_batch and workers,
 * which may differ; values of parameters, for rank 0's become everybody's; and what functions and modules of the program
 * keep to themselves (tr_module_detail(), tr_agree()). Kernels that differ, as on processors with other instructions, are
 * told in the log. docs/trust.md has the details. */
#define tr_trainer(...) tr_trainer_with(TR__BRACES2(tr_trainer_options, model, text, __VA_ARGS__))
TR_API tr_trainer *tr_trainer_with(const tr_trainer_options *options);
/* TR_INVALID when names, as .allow_different takes them (NULL: none), has one that no kind of trainer compares: for a program that
 * starts ranks, each of which would say so. */
TR_API TR_MUST_CHECK tr_status tr_check_allow_different(const char *names);

/* A classifier on a dataset, by SGD with momentum. */
typedef struct tr_classifier_trainer_options {
    size_t size;
    const char *given;
    tr_module *model;           /* x: [batch, …] -> logits [batch, classes] */
    tr_dataset *set;            /* samples with an integer y, the class */
    tr_dataset *validation;     /* NULL: none */
    tr_group *group;            /* NULL: this process alone */
    int64_t global_batch;       /* samples in a step, of all ranks together (any number sees the same ones); default 64. An
                                   incomplete batch at an epoch's end is left out: another order comes each time */
    int64_t micro_batch;        /* the most samples that a rank computes at once; 0: its share of the batch. Batch norm sees
                                   these alone */
    int64_t steps;              /* of the schedule; default: 10 epochs */
    int64_t warmup_steps;       /* 0: none */
    double lr, min_lr;          /* default 0.05, 0 */
    double momentum;            /* default 0.9 */
    double weight_decay;        /* added to the gradient; default 5e-4 */
    double clip;                /* the most that the gradients' norm may be; 0: any */
    uint64_t seed;              /* for the order, for each sample's random numbers, and dropout */
    int workers;                /* threads that make batches ahead; default 1 */
    const char *resume;         /* as tr_trainer's, and the next three */
    tr_dtype autocast;
    tr_optimizer_maker optimizer; /* NULL: SGD, with momentum and weight_decay */
    void *user;
    bool step_in_backward;      /* as tr_trainer's */
    tr_on_bad on_bad;           /* TR_SKIP: samples of set and validation that cannot be made are left out, as a loader
                                   does; tr_trainer_skipped() counts them */
    const char *allow_different; /* as tr_trainer's: ranks compare what they were told */
    int64_t check_replicas;     /* as tr_trainer's, and the next one */
    bool stop_on_spike;
} tr_classifier_trainer_options;
#define tr_classifier_trainer(...) \
    tr_classifier_trainer_with(TR__BRACES2(tr_classifier_trainer_options, model, set, __VA_ARGS__))
TR_API tr_trainer *tr_classifier_trainer_with(const tr_classifier_trainer_options *options);

/* Steps done, those before the checkpoint included. */
TR_API int64_t tr_trainer_steps(const tr_trainer *trainer);
/* How many bad samples this rank has skipped, in training and validation: tr_loader_skipped(). */
TR_API int64_t tr_trainer_skipped(const tr_trainer *trainer);
/* One step of the whole batch. *stop: on entry, does this rank want to stop? On return, does any? So all ranks stop at
 * the same step. row gets all but validation_loss and seconds. */
TR_API TR_MUST_CHECK tr_status tr_trainer_step(tr_trainer *trainer, tr_metrics_row *row, bool *stop);
/* Shared out over the ranks: the mean loss over the first windows of the text's validation part, without an accuracy; or
 * loss and accuracy over a classifier's validation set. NaN without any. */
TR_API TR_MUST_CHECK tr_status tr_trainer_validate(tr_trainer *trainer, tr_score *score);
typedef struct tr_trainer_save_options {
    size_t size;
    const char *given;
    tr_trainer *trainer;
    const char *folder;
    const tr_tensor_list *about; /* its metadata is stored with the model; NULL: none */
    int keep;                    /* as tr_checkpoint_save_options has them */
    bool keep_best;
} tr_trainer_save_options;
/* tr_checkpoint_save() of the model, all that training needs to go on exactly, and the metrics of the steps that tr_fit() has made; by
 * rank 0 only. */
#define tr_trainer_save(...) TR__NEW3(tr_trainer_save, trainer, folder, about, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_trainer_save_with(const tr_trainer_save_options *options);

typedef struct tr_fit_report {
    double initial_loss, final_loss;  /* of the first and the last step's batch */
    double validation_loss, best_validation_loss; /* the latest and the least; NaN: none was measured */
    double validation_accuracy, best_validation_accuracy; /* the latest and the greatest; NaN: none was measured */
    double items_per_s;               /* of all steps of this call, validation and saving left out */
    double step_ms_median;            /* NaN: there was no step */
    double seconds;                   /* of this call */
    double first_step_ms;             /* from the call to the first step's start */
    int64_t peak_rss_bytes;           /* the most of any rank */
    int64_t peak_rss_bytes_sum;       /* of all ranks together; shared memory counts in each */
    int64_t skipped;                  /* bad samples that all ranks skipped in this call, in training and validation;
                                         after a failure, that this rank did */
    bool stopped;                     /* before the last step, because a rank asked for it */
    bool common_failure;              /* what failed, failed alike on every rank */
    tr_metrics *metrics;              /* on rank 0: all rows of the training, of the innermost scope; elsewhere NULL */
    int64_t rolled_back;              /* how often it went back to a checkpoint, as .roll_back asks */
} tr_fit_report;

typedef struct tr_fit_options {
    size_t size;
    const char *given;
    tr_trainer *trainer;
    const char *folder;            /* where rank 0 writes metrics.csv (all rows of the training, also those of
                                      before a resumption) and checkpoints; made if need be. NULL: nowhere */
    const tr_tensor_list *about;   /* see tr_trainer_save() */
    int64_t stop_at;               /* stop after this step; 0: the schedule's last */
    int64_t validate_every;        /* steps; default 250; 0: at the end only, where a validation comes in any case */
    int64_t save_every;            /* steps; 0: at the end only */
    int keep;                      /* checkpoints: as tr_checkpoint_save_options has them */
    bool keep_best;
    bool (*should_stop)(void *user); /* asked before every step, and while it waits for a batch; NULL: never */
    void (*on_step)(const tr_metrics_row *row, void *user);     /* after every step; or NULL */
    void (*on_save)(int64_t step, void *user);                  /* rank 0 has saved; or NULL */
    void *user;
    tr_fit_report *report;         /* filled in, also on failure; or NULL */
    int64_t profile_steps;         /* of so many steps, after the first two, every rank writes a profile into folder; 0: none.
                                      docs/debugging.md tells how to read it. What cannot be written is this
                                      rank's failure after the training is done and saved. Of ranks that are
                                      threads of a process only one may ask, and its profile has all of them */
    bool roll_back;                /* where replicas differ (.check_replicas), all ranks go back to the newest whole
                                      checkpoint in folder, which was saved when they were alike, and go on from there; the
                                      log says so. The start is saved, too. A fourth time to the same checkpoint is a
                                      failure. Of this, save_every and folder rank 0's count */
    /* Rank 0 calls it when it opens the folder and after each save, with all rows so far: tr_chart_loss() of
     * trireme/tools.h draws loss.svg. A failure ends the training. NULL: nothing is drawn. */
    tr_status (*draw)(const tr_metrics *metrics, const char *folder);
} tr_fit_options;
/* Trains to the end, or until a rank asks to stop; then saves. A validation that is due at the trainer's step and was
 * not done, as after a resumption from where a rank was lost in it, comes first, and is saved.
 *
 * When a rank asks while the loader's workers hang, so that the step would never end, it stops after five seconds without a
 * sample: a process alone saves what it has; one of several ranks fails with TR_CANCELLED, for the others are in the middle of the
 * step. Releasing the trainer then waits for the workers; _exit() does not.
 *
 * TR_STATE on rank 0 (elsewhere TR_PEER) for a folder that
 *   - holds a checkpoint of a later step than the trainer's: another training's, or to be gone on with by .resume;
 *   - another training is writing into;
 *   - is removed, moved or replaced while this training writes into it: what was saved in it before is good. */
#define tr_fit(...) tr_fit_with(TR__BRACES1(tr_fit_options, trainer, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_fit_with(const tr_fit_options *options);

#ifdef __cplusplus
}
#endif

#endif
