/*
 * Trireme, training: files of tensors, checkpoints, metrics, evaluation, and trainers of language models and classifiers.
 * docs/training.md has a whole program.
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
/* Reads a safetensors file into CPU tensors and metadata. Every length and offset is checked; a damaged file is
 * TR_FORMAT, and the message says what is wrong. */
TR_API tr_tensor_list *tr_safetensors_load(const char *path);

/* NumPy's .npy files: one CPU tensor. Loading takes versions 1.0 to 3.0, both orders of elements and of bytes; saving
 * writes what numpy.save() writes, atomically. NumPy has no bf16. */
TR_API TR_MUST_CHECK tr_status tr_npy_save(const char *path, const tr_tensor *t);
TR_API tr_tensor *tr_npy_load(const char *path);
/* NumPy's .npz archives of arrays by name, stored or compressed, as numpy.savez() and numpy.savez_compressed() write
 * them. The list's metadata is not saved. */
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
    int64_t max_bytes; /* the most bytes of its arrays; 0: 64 MiB or 32 times the file's size, whichever is more */
} tr_npz_load_options;
/* An archive with more than .max_bytes is refused (TR_FORMAT) before an array is unpacked: a crafted one grows a
 * thousandfold. */
#define tr_npz_load(...) TR__NEW1(tr_npz_load, path, __VA_ARGS__)
TR_API tr_tensor_list *tr_npz_load_with(const tr_npz_load_options *options);

/* One training step in the metrics. */
typedef struct tr_metrics_row {
    int64_t step;            /* updates done, this one included */
    int64_t items;           /* trained on up to this step: tokens of a text, samples of a dataset */
    double lr;
    double loss;             /* of the step's batch, before its update */
    double validation_loss;  /* after the update; NaN: not measured at this step (an empty field) */
    double items_per_s;      /* of this step */
    double grad_norm;        /* before clipping; NaN: not measured */
    double seconds;          /* of training, without pauses between resumed runs */
    double validation_accuracy; /* 0 … 1, with validation_loss; NaN: not measured */
} tr_metrics_row;
/* The rows of a training, and a CSV file that gets each row as it is added. An object. */
typedef struct tr_metrics tr_metrics;

typedef struct tr_checkpoint_save_options {
    size_t size;
    const char *given;
    const char *folder;
    int64_t step;              /* 0 to 2^53 */
    const tr_tensor_list *model, *state;
    const tr_metrics *metrics; /* NULL: none */
    const double *loss;        /* the validation loss after this step; NULL: none was measured */
    int keep;                  /* how many of the newest checkpoints to keep, 1 to 1,000; default 2 */
    bool keep_best;            /* keep the one with the least validation loss, too */
} tr_checkpoint_save_options;
/*
 * Writes FOLDER/checkpoint-STEP/: model.safetensors, state.safetensors, with .metrics history.safetensors, and last
 * manifest.json. Makes the folder if it is missing. The manifest holds the size and SHA-256 of each file, the CRC-32C
 * of each tensor, and the save's identifier, which all its files carry in their metadata (docs/trust.md).
 *
 * Then it removes older checkpoints, except those of .keep and .keep_best; one that cannot be removed is a warning in
 * the log. The new checkpoint appears whole or not at all: whenever the process ends, the newest checkpoint is good.
 * One saves into a folder at a time: of several ranks, rank 0 alone. TR_STATE while another process or thread saves into it,
 * or a tr_fit() writes into it (file systems without flock(2) cannot tell).
 *
 * TR_STATE, too, when the folder holds a checkpoint of a later step, which would stay the newest: another training's, or one
 * that this training went back from. Resume from it, remove it, or choose another folder. One of the same step is
 * replaced. Later ones that are all damaged, where one before them is whole, are what a resumption passes over: they are
 * renamed to damaged-checkpoint-STEP, and the log says so.
 */
#define tr_checkpoint_save(...) TR__NEW4(tr_checkpoint_save, folder, step, model, state, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_checkpoint_save_with(const tr_checkpoint_save_options *options);
/* Finds the newest checkpoint in folder, or folder itself when it is a checkpoint. path gets its path, at least 4,096
 * bytes; *step its step, -1 when the name of folder itself has none. TR_NOT_FOUND without a checkpoint. A failure
 * leaves path and step unchanged. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_find(const char *folder, char *path, int64_t *step);
/* The same among checkpoints that are whole: it verifies each against its manifest, newest first, skips a damaged one,
 * and logs the damage. TR_FORMAT when all are damaged; the message is about the newest. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_find_whole(const char *folder, char *path, int64_t *step);
/* Finds the checkpoint in folder with the least validation loss, which .keep_best keeps. path gets its path, at least
 * 4,096 bytes; *step its step and *loss its loss, or NULL. TR_NOT_FOUND when none was saved with a .loss. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_find_best(const char *folder, char *path, int64_t *step, double *loss);
/* Loads a checkpoint that one of these found; with a NULL state only the model. It verifies what it reads
 * against the manifest: a difference is TR_FORMAT, and the message has the file, the tensor and the offset. A
 * checkpoint without a manifest (safetensors from elsewhere) loads with a warning in the log that nothing was
 * verified. */
TR_API TR_MUST_CHECK tr_status tr_checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state);

/* What verifying found in a part of a checkpoint: a tensor, or after its tensors a whole file. */
typedef struct tr_checkpoint_part {
    const char *file;         /* "model.safetensors" */
    const char *tensor;       /* NULL: the whole file */
    int64_t begin, end;       /* its bytes in the file */
    tr_dtype dtype;           /* of the tensor */
    tr_shape shape;
    int64_t nans, infinities; /* values of the tensor that are not finite; 0 in the history, where NaN means "not
                                 measured" */
    int64_t first_not_finite; /* the row-major index of the first of them; -1: all values are finite */
    const char *damage;       /* what is wrong, with its path and bytes; NULL: nothing */
} tr_checkpoint_part;

typedef struct tr_checkpoint_report {
    bool has_manifest;        /* false: nothing could be verified, and the next five fields are empty */
    int64_t step;
    double loss;              /* the validation loss; NaN: not measured */
    char save[40];            /* the identifier of the save */
    char version[24];         /* the version of Trireme that saved it */
    char settings[72];        /* SHA-256 of the model's metadata */
    int files, tensors;       /* read */
    int64_t bytes;
    int damaged;              /* damaged parts */
    int not_finite;           /* tensors with NaN or infinities */
    tr_tensor_list *about;    /* the model's metadata, without tensors; in the innermost scope */
} tr_checkpoint_report;

typedef struct tr_checkpoint_verify_options {
    size_t size;
    const char *given;
    const char *path;                                              /* a checkpoint, or a safetensors file alone */
    tr_checkpoint_report *report;                                  /* filled in, also on failure; or NULL */
    void (*on_part)(const tr_checkpoint_part *part, void *user);   /* for each part, in the files' order; or NULL */
    void *user;
} tr_checkpoint_verify_options;
/* Verifies a checkpoint against its manifest, without keeping it in memory: the header and each tensor of model, state
 * and history by their CRC-32C, each file by its SHA-256. A single file is verified against the manifest beside it, if
 * that lists it. Damage is TR_FORMAT; the message is about the first damaged part, and the rest is read all the same.
 * Values that are not finite were saved so: they are counted, and are not damage. */
#define tr_checkpoint_verify(...) TR__NEW1(tr_checkpoint_verify, path, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_checkpoint_verify_with(const tr_checkpoint_verify_options *options);

typedef struct tr_metrics_options {
    size_t size;
    const char *given;
    const char *path;
    const char *checkpoint;  /* a path from tr_checkpoint_find(), whose rows come first; NULL: no rows */
    const char *item;        /* the unit of the columns "tokens" and "tokens_per_s"; NULL: "token" */
    bool accuracy;           /* with a column validation_accuracy */
} tr_metrics_options;
/* Metrics that begin with the rows of a checkpoint, for a resumed training, or without rows. The file is written anew,
 * whole or not at all. Its rows are never read, so damage to the file does not damage the training. Without rows an
 * existing file must be a metrics file: any other is TR_FORMAT and stays. */
#define tr_metrics_open(...) tr_metrics_open_with(TR__NAMED_OPTIONS1(tr_metrics_options, path, __VA_ARGS__))
TR_API tr_metrics *tr_metrics_open_with(const tr_metrics_options *options);
/* Appends a row, of a later step than the last one. TR_INVALID for impossible values (a negative count, an accuracy of
 * 2). */
TR_API TR_MUST_CHECK tr_status tr_metrics_add(tr_metrics *metrics, const tr_metrics_row *row);
/* Syncs the file to disk, and writes it again if it was removed or replaced. */
TR_API TR_MUST_CHECK tr_status tr_metrics_sync(tr_metrics *metrics);
/* All rows, those of the checkpoint included; valid until the next one is added. *count: how many; or NULL. */
TR_API const tr_metrics_row *tr_metrics_rows(const tr_metrics *metrics, int64_t *count);

/* ---- Evaluation -------------------------------------------------------------------------------------------------- */

typedef struct tr_score {
    double loss;        /* the mean */
    double accuracy;    /* correct / count; NaN when y has no class indices */
    int64_t count;      /* targets: one per sample, or per token of a sequence; without those that cross-entropy ignores
                           (-100) */
    int64_t correct;    /* targets where the output is largest */
} tr_score;

typedef struct tr_evaluate_options {
    size_t size;
    const char *given;
    tr_module *net;
    tr_loader *loader;
    tr_group *group;        /* its ranks divide the samples, and all get the score of all samples; NULL: the loader's
                               .group, or its sampler's. TR_INVALID when the loader divides its samples otherwise */
    tr_loss_function loss;  /* NULL: cross-entropy of outputs [..., classes] with i64 or i32 y: [...] */
    void *user;             /* for loss */
    tr_score *score;        /* filled in on success; NULL: only whether the model runs on all samples */
    const char *file;     /* where the call is, for messages: the macro sets both */
    int line;
} tr_evaluate_options;
/* Runs net in eval mode and without a graph over a whole epoch of the loader, from its start: net gets the batch's x, and
 * the loss its y, which is moved to the outputs' device; .more is not used. Afterwards its modules are in their former
 * modes. Duplicates do not count, so any number of ranks gives the same score, to rounding. A failure on one rank is a
 * failure on all. With a group all ranks call it, with loaders over the same set. The sets are not compared: the score of
 * different sets mixes parts of them. */
#define tr_evaluate(...) tr_evaluate_with(TR__BRACES2(tr_evaluate_options, net, loader, __VA_ARGS__, TR__HERE))
TR_API TR_MUST_CHECK tr_status tr_evaluate_with(const tr_evaluate_options *options);

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* A model, its optimizer under a cosine schedule with warm-up, its data, and the ranks that train it. */
typedef struct tr_trainer tr_trainer;

/* Makes a trainer's optimizer of the model's parameters, as `return tr_lion(parameters, .weight_decay = 0.1);`. The schedule
 * sets its lr in each step. A sharded optimizer trains, but cannot be saved: TR_UNSUPPORTED with .resume, and from tr_fit()
 * with .folder. */
typedef tr_optimizer *(*tr_optimizer_maker)(tr_tensor_list *parameters, void *user);

/* The mean loss of a batch: of net's output for x, and y. */
typedef tr_tensor *(*tr_batch_loss)(tr_module *net, tr_tensor *x, tr_tensor *y, void *user);

/* A language model on a text, by AdamW. */

typedef struct tr_trainer_options {
    size_t size;
    const char *given;
    tr_module *model;           /* i32 [batch, context] -> logits [batch, context, vocabulary] */
    tr_text *text;
    tr_group *group;            /* NULL: this process alone */
    int64_t context;            /* tokens in a window; default 256 */
    int64_t global_batch;       /* windows in a step of all ranks together, the same for any number of ranks; default
                                   12 */
    int64_t micro_batch;        /* the most windows that a rank computes at once; 0: its part of the batch */
    int64_t steps;              /* of the schedule; default 2,000 */
    int64_t warmup_steps;       /* 0: none */
    double lr, min_lr;          /* default 1e-3, lr / 10 */
    double beta1, beta2;        /* default 0.9, 0.99 */
    double weight_decay;        /* of matrices; default 0.1 */
    double clip;                /* clips the gradients' norm to this; default 1; 0: no clipping */
    uint64_t seed;              /* for batches and dropout */
    int64_t validation_windows; /* the most windows of a validation; default 2,048 */
    const tr_masking *masking;  /* masked language modelling, as BERT; NULL: predict the next token. Copied */
    const char *resume;         /* a folder of checkpoints, or a checkpoint, to resume from. Only rank 0 reads it */
    tr_dtype autocast;          /* TR_BF16 or TR_F16: forward runs in it, parameters and optimizer stay f32; 0: the
                                   caller's autocast, if any */
    tr_optimizer_maker optimizer; /* NULL: AdamW, with beta1, beta2 and weight_decay */
    void *user;                 /* for optimizer and loss */
    tr_batch_loss loss;         /* NULL: tr_cross_entropy(tr_forward(net, x), y). net is the model, or DDP around it */
    bool step_in_backward;      /* tr_step_in_backward(), which saves the memory of all gradients: no clipping, no
                                   micro-batches, no .stop_on_spike. On the CPU trainers do so by themselves where all
                                   ranks can; this makes it an error where it cannot be */
    const char *allow_different; /* settings that may differ between ranks: "lr, data"; NULL: none */
    int64_t check_replicas;     /* compare replicas every so many steps, and before tr_fit() saves; default 100; 0:
                                   never (a binding: -1). Parameters, buffers and the optimizer's state (unless it is
                                   sharded) are compared bit for bit: TR_MISMATCH on every rank names the odd ranks, the
                                   first tensor, and the last step at which all were equal. TRIREME_CHECK=replicas makes
                                   it every step, unless this is 0 */
    bool stop_on_spike;         /* a gradient norm above 1,000 times the median of the last 100 (at least 20) steps is a
                                   warning in the log that names the rank and the parameter. With this it is
                                   TR_INVALID instead, and the step is not applied */
    bool step_after_backward;   /* keep all gradients until the step has been made, so that on_step of tr_fit() can read
                                   them; none is applied before all are known to be finite (in the steps that check
                                   this) */
    const char *file;           /* where the call is, for messages: the macro sets both */
    int line;
} tr_trainer_options;
/* Ranks first compare their settings, in one exchange, before anything is read from a checkpoint, exchanged or written.
 * When they differ the trainer is in error on every rank, with TR_MISMATCH, and the message shows each value with its
 * ranks: "trainer: ranks differ: lr is 0.001 on rank 0, 0.01 on rank 1". The settings are, by name,
 *
 *   model       its modules, their parameters and buffers: kinds, details, shapes, dtypes, which are frozen
 *   data        of a text, size and CRC-32C (beyond 64 MiB, of a sample), and tokenizer, its vocabulary and merges;
 *               of a dataset, length and contents, and three samples where a function makes them; validation, as data
 *   optimizer   its rule and settings, as optimizer.beta1 and optimizer.weight_decay, and its parameter groups
 *   loss, global_batch, steps, warmup_steps, lr, min_lr, clip, seed, autocast, resume (whether), allow_different,
 *   check_replicas, stop_on_spike, step_in_backward (which may not differ)
 *   context, validation_windows, masking of a text; on_bad of a classifier
 *
 * .allow_different takes these names; "optimizer" covers all below it. Not compared are micro_batch and workers, which
 * may differ; the values of parameters, which rank 0 broadcasts; and the state of the program's own functions and modules
 * (tr_module_detail() and tr_agree() are for these). Different kernels, as on processors with other instructions, are
 * logged. docs/trust.md has the details. */
#define tr_trainer_new(...) tr_trainer_new_with(TR__BRACES2(tr_trainer_options, model, text, __VA_ARGS__, TR__HERE))
TR_API tr_trainer *tr_trainer_new_with(const tr_trainer_options *options);
/* TR_INVALID when names, as in .allow_different (NULL: none), has a name that no trainer compares. For a program that
 * starts ranks, each of which would fail with the same message. */
TR_API TR_MUST_CHECK tr_status tr_check_allow_different(const char *names);

/* A classifier on a dataset, by SGD with momentum. */
typedef struct tr_classifier_trainer_options {
    size_t size;
    const char *given;
    tr_module *model;           /* x: [batch, …] -> logits [batch, classes] */
    tr_dataset *set;            /* samples with an integer y, the class index. Their .more is not used */
    tr_dataset *validation;     /* NULL: none */
    tr_group *group;            /* NULL: this process alone */
    int64_t global_batch;       /* samples in a step of all ranks together, the same for any number of ranks; default
                                   64. An incomplete batch at an epoch's end is left out; each epoch has another
                                   order */
    int64_t micro_batch;        /* the most samples that a rank computes at once, which batch norm normalizes over; 0:
                                   its part of the batch */
    int64_t steps;              /* of the schedule; default: 10 epochs */
    int64_t warmup_steps;       /* 0: none */
    double lr, min_lr;          /* default 0.05, 0 */
    double momentum;            /* default 0.9 */
    double weight_decay;        /* added to the gradient; default 5e-4 */
    double clip;                /* clips the gradients' norm to this; 0: no clipping */
    uint64_t seed;              /* for the order, for each sample's random numbers, and dropout */
    int workers;                /* of the loader; default 1 */
    const char *resume;         /* this and the next three: as in tr_trainer_options */
    tr_dtype autocast;
    tr_optimizer_maker optimizer; /* NULL: SGD, with momentum and weight_decay */
    void *user;
    bool step_in_backward;      /* as in tr_trainer_options */
    tr_on_bad on_bad;           /* TR_SKIP: bad samples of set and validation are replaced, as a loader does;
                                   tr_trainer_skipped() counts them */
    const char *allow_different; /* this and the next two: as in tr_trainer_options */
    int64_t check_replicas;
    bool stop_on_spike;
    bool step_after_backward;   /* as in tr_trainer_options */
    const char *file;           /* where the call is, for messages: the macro sets both */
    int line;
} tr_classifier_trainer_options;
#define tr_classifier_trainer(...) \
    tr_classifier_trainer_with(TR__BRACES2(tr_classifier_trainer_options, model, set, __VA_ARGS__, TR__HERE))
TR_API tr_trainer *tr_classifier_trainer_with(const tr_classifier_trainer_options *options);

/* Steps done, including those before the checkpoint. */
TR_API int64_t tr_trainer_steps(const tr_trainer *trainer);
/* Damaged checkpoints that .resume, or tr_fit()'s .roll_back, has passed over for an older one that is whole. Rank 0 reads
 * checkpoints; on other ranks it is 0. The log has the name and the damage of each. */
TR_API int64_t tr_trainer_passed_over(const tr_trainer *trainer);
/* Bad samples that this rank has skipped, in training and validation, as tr_loader_skipped() counts them. */
TR_API int64_t tr_trainer_skipped(const tr_trainer *trainer);
/* One step of the whole batch. *stop is an input, whether this rank wants to stop, and an output, whether any rank
 * does: so all stop at the same step. row gets all fields but validation_loss and seconds. Afterwards tr_grad() is NULL
 * where the step was made in backward, as it is by default; .step_after_backward keeps the gradients. */
TR_API TR_MUST_CHECK tr_status tr_trainer_step(tr_trainer *trainer, tr_metrics_row *row, bool *stop);
/* Validates, divided over the ranks: the mean loss over the first windows of a text's validation part, without an
 * accuracy, or loss and accuracy over a classifier's validation set. Without validation data both are NaN. */
TR_API TR_MUST_CHECK tr_status tr_trainer_validate(tr_trainer *trainer, tr_score *score);
typedef struct tr_trainer_save_options {
    size_t size;
    const char *given;
    tr_trainer *trainer;
    const char *folder;
    const tr_tensor_list *about; /* its metadata is saved with the model; NULL: none */
    int keep;                    /* as in tr_checkpoint_save_options */
    bool keep_best;
} tr_trainer_save_options;
/* tr_checkpoint_save() of the model, of all that an exact resumption needs, and of the metrics of tr_fit()'s steps; on
 * rank 0 only. */
#define tr_trainer_save(...) TR__NEW3(tr_trainer_save, trainer, folder, about, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_trainer_save_with(const tr_trainer_save_options *options);

typedef struct tr_fit_report {
    double initial_loss, final_loss;  /* of the first and the last step's batch */
    double validation_loss, best_validation_loss; /* the latest and the least; NaN: not measured */
    double validation_accuracy, best_validation_accuracy; /* the latest and the greatest; NaN: not measured */
    double items_per_s;               /* over the steps of this call, without validation and saving */
    double step_ms_median;            /* NaN without a step */
    double seconds;                   /* of this call */
    double first_step_ms;             /* from the call to the first step's start */
    int64_t peak_rss_bytes;           /* the maximum over the ranks */
    int64_t peak_rss_bytes_sum;       /* the sum over the ranks; shared memory counts in each */
    int64_t skipped;                  /* bad samples that all ranks skipped in this call, in training and validation;
                                         after a failure, this rank's alone */
    bool stopped;                     /* a rank asked to stop before the last step */
    bool common_failure;              /* the same failure happened on every rank */
    tr_metrics *metrics;              /* on rank 0: all rows of the training, in the innermost scope; elsewhere NULL */
    int64_t rolled_back;              /* how often .roll_back went back to a checkpoint */
} tr_fit_report;

typedef struct tr_fit_options {
    size_t size;
    const char *given;
    tr_trainer *trainer;
    const char *folder;            /* where rank 0 writes checkpoints and metrics.csv, with all rows since the training
                                      began; made if it is missing. NULL: nothing is written */
    const tr_tensor_list *about;   /* as in tr_trainer_save_options */
    int64_t stop_at;               /* stop after this step; 0: the schedule's last */
    int64_t validate_every;        /* steps; default 250; 0: only at the end, where it always validates */
    int64_t save_every;            /* steps; 0: only at the end */
    int keep;                      /* this and the next: as in tr_checkpoint_save_options */
    bool keep_best;
    bool (*should_stop)(void *user); /* called before every step, and while waiting for a batch; or NULL */
    void (*on_step)(const tr_metrics_row *row, void *user);     /* called after every step; or NULL */
    void (*on_save)(int64_t step, void *user);                  /* called when rank 0 has saved; or NULL */
    void *user;
    tr_fit_report *report;         /* filled in, also on failure; or NULL */
    int64_t profile_steps;         /* every rank profiles so many steps, after the first two, and writes the profile
                                      into folder (docs/debugging.md); 0: none. A profile that cannot be written is this
                                      rank's failure, after the training is done and saved. Of ranks that are threads of
                                      one process only one may set it, and its profile covers all of them */
    bool roll_back;                /* when replicas differ (.check_replicas), all ranks resume from the newest whole
                                      checkpoint in folder, which was saved when they were equal, and the log says so.
                                      The start is saved, too. Going back to the same checkpoint a fourth time is a
                                      failure. Rank 0's values of this, save_every and folder count */
    /* Rank 0 calls it when it opens the folder and after each save, with all rows so far: tr_chart_loss() of
     * trireme/tools.h draws loss.svg. A failure ends the training. NULL: nothing is drawn. */
    tr_status (*draw)(const tr_metrics *metrics, const char *folder);
    const char *file;              /* where the call is, for messages: the macro sets both */
    int line;
} tr_fit_options;
/* Trains to the end, or until a rank asks to stop; then saves. If the trainer's step is due for a validation that was
 * not finished, as when a rank was lost in it, the training begins with that validation, and saves it.
 *
 * When a rank asks to stop while the loader's workers hang, it stops after five seconds without a sample: a single
 * process saves what it has; one of several ranks fails with TR_CANCELLED, because the others are within the step.
 * Releasing the trainer then waits for the workers; _exit() does not.
 *
 * TR_STATE on rank 0, and TR_PEER elsewhere, when the folder
 *   - holds a checkpoint of a later step than the trainer's: another training's, or one to resume from with .resume;
 *   - is in use by another training;
 *   - is removed, moved or replaced during the training: earlier checkpoints in it are good. */
#define tr_fit(...) tr_fit_with(TR__BRACES1(tr_fit_options, trainer, __VA_ARGS__, TR__HERE))
TR_API TR_MUST_CHECK tr_status tr_fit_with(const tr_fit_options *options);

#ifdef __cplusplus
}
#endif

#endif
