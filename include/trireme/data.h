/*
 * Trireme, data: datasets, samplers and the loader, which makes batches of samples ahead of the training loop;
 * tokenizers and texts. docs/data.md shows how they go together.
 */
#ifndef TRIREME_DATA_H
#define TRIREME_DATA_H

#include <trireme/comm.h>
#include <trireme/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Datasets ---------------------------------------------------------------------------------------------------- */

/* Samples by index. An object; read-only once made, so several threads may ask it at the same time. */
typedef struct tr_dataset tr_dataset;

/* One sample, without the batch dimension. y may be NULL: there is none. */
typedef struct tr_sample {
    tr_tensor *x, *y;
} tr_sample;

/* What a program's own function is asked for. */
typedef struct tr_sample_call {
    int64_t index; /* in its dataset, from 0 */
    uint64_t seed; /* for the random numbers of this sample: of (the loader's seed, epoch, index), so the same for any
                      number of workers and ranks */
    void *user;
} tr_sample_call;

/* Fills *out with tensors of the innermost scope (or the dataset's own, kept ones), on the CPU. Called from any thread,
 * from several at once. What it fails with reaches the training loop, with the sample's number before it. */
typedef tr_status (*tr_dataset_get)(const tr_sample_call *call, tr_sample *out);

typedef struct tr_dataset_options {
    size_t size;
    const char *given;
    int64_t count;                 /* samples */
    tr_dataset_get get;
    void *user;
    void (*release)(void *user);   /* when the dataset goes; never when making it failed */
    const char *name;              /* for messages; NULL: "dataset" */
} tr_dataset_options;
/* A program's own. The samples that make a batch must be alike in shape and dtype, unless the loader has a .collate. */
#define tr_dataset_new(...) tr_dataset_new_with(TR__BRACES2(tr_dataset_options, count, get, __VA_ARGS__))
TR_API tr_dataset *tr_dataset_new_with(const tr_dataset_options *options);

/* A dataset that can be made again in another process, as a loader with .processes does: make() is called here and
 * there, with a copy of the argument's bytes (no pointers into this process), and gives the same samples. make is a
 * function of the program or of a library that it has loaded. Datasets of files, below, are such by themselves, and so
 * are slices of such. */
typedef tr_dataset *(*tr_dataset_make)(const void *argument, size_t bytes);
TR_API tr_dataset *tr_dataset_from(tr_dataset_make make, const void *argument, size_t bytes);

/* Sample i is row i of x and of y, contiguous CPU tensors that it holds; y may be NULL. */
TR_API tr_dataset *tr_dataset_tensors(tr_tensor *x, tr_tensor *y);
/* Samples [begin, end) of another. */
TR_API tr_dataset *tr_dataset_slice(tr_dataset *set, int64_t begin, int64_t end);
/* The samples of another with these numbers, count of them, in this order. */
TR_API tr_dataset *tr_dataset_subset(tr_dataset *set, const int64_t *indices, int64_t count);
/* Another's samples as function changes them: *sample comes filled, and goes as a tr_dataset_get would leave it. */
typedef tr_status (*tr_dataset_function)(const tr_sample_call *call, tr_sample *sample);
TR_API tr_dataset *tr_dataset_map(tr_dataset *set, tr_dataset_function function, void *user);

typedef struct tr_image_set_options {
    size_t size;
    const char *given;
    const char *folder;
    bool train; /* the training set; otherwise the test set */
    bool raw;   /* x as u8 0 … 255; otherwise f32 0 … 1 */
    int64_t max_bytes; /* the most bytes that each of MNIST's files holds, as tr_idx_load() has it */
} tr_image_set_options;
/* MNIST and what is laid out like it (Fashion-MNIST, KMNIST, …): train-images-idx3-ubyte, train-labels-idx1-ubyte or
 * t10k-…, with .gz or without. x: [1, height, width], y: i64, a scalar. */
#define tr_mnist(...) tr_mnist_with(TR__NAMED_OPTIONS1(tr_image_set_options, folder, __VA_ARGS__))
TR_API tr_dataset *tr_mnist_with(const tr_image_set_options *options);

/* CIFAR-10's binary files: data_batch_1.bin … data_batch_5.bin or test_batch.bin. x: [3, 32, 32], y: i64, a scalar. */
#define tr_cifar10(...) tr_cifar10_with(TR__NAMED_OPTIONS1(tr_image_set_options, folder, __VA_ARGS__))
TR_API tr_dataset *tr_cifar10_with(const tr_image_set_options *options);

typedef struct tr_image_folder_options {
    size_t size;
    const char *given;
    const char *folder;
    int height, width;  /* what images are scaled to, by averages where they become smaller */
    bool raw;           /* as in tr_image_set_options */
    int64_t max_pixels; /* the most pixels, width x height, that the image in a file may have; 0: 2^26, 67 million. Images
                           are scaled row by row, and take a few rows of memory; progressive JPEG and interlaced PNG
                           files, which have no rows until their end, at most three bytes for each of max_pixels */
} tr_image_folder_options;
/* Images in a sub-folder for each class, numbered in order of names: JPEG and PNG files (.jpg, .jpeg, .png; what is
 * in them says which), read when they are asked for. x: RGB, [3, height, width], y: i64, a scalar. A file that is damaged
 * or has more pixels than .max_pixels is TR_FORMAT when it is read, and named. */
#define tr_image_folder(...) tr_image_folder_with(TR__NAMED_OPTIONS1(tr_image_folder_options, folder, __VA_ARGS__))
TR_API tr_dataset *tr_image_folder_with(const tr_image_folder_options *options);
/* The name of a class, "cat", of an image folder (not of a slice of one); NULL when there is none of that number. */
TR_API const char *tr_image_folder_class(const tr_dataset *set, int64_t label);

typedef struct tr_idx_load_options {
    size_t size;
    const char *given;
    const char *path;
    int64_t max_bytes; /* the most bytes of elements; 0: of a compressed file 64 MiB or 32 times its size, whichever is
                          more; of a plain one any number */
} tr_idx_load_options;
/* The tensor of an IDX file, plain or compressed with gzip: u8, i32, f32 or f64. One with more than .max_bytes is
 * TR_FORMAT before memory is taken for it: a crafted file unpacks to a thousand times its size. */
#define tr_idx_load(...) TR__NEW1(tr_idx_load, path, __VA_ARGS__)
TR_API tr_tensor *tr_idx_load_with(const tr_idx_load_options *options);

TR_API int64_t tr_dataset_count(const tr_dataset *set); /* 0 in error */
/* One sample, in the innermost scope; its random numbers are those of seed 0 and epoch 0. */
TR_API TR_MUST_CHECK tr_status tr_dataset_at(tr_dataset *set, int64_t index, tr_sample *out);

/* ---- Samplers ---------------------------------------------------------------------------------------------------- */

/* Which samples a rank takes in an epoch, and in which order. An object. */
typedef struct tr_sampler tr_sampler;

typedef struct tr_distributed_sampler_options {
    size_t size;
    const char *given;
    int64_t count;         /* samples that there are */
    tr_group *group;       /* whose rank and world size; NULL: those below */
    int rank, world_size;  /* a world_size of 0 is 1 */
    bool in_order;         /* in the order of their numbers; otherwise shuffled, as PyTorch's are, by Philox from (seed,
                              epoch) */
    uint64_t seed;         /* the same on all ranks */
    bool drop_last;        /* leave the last out, so that all ranks get as many; otherwise the first are repeated */
    int64_t global_batch;  /* samples that all ranks together take in a step: see below; 0: PyTorch's rule */
} tr_distributed_sampler_options;
/* PyTorch's rule: rank r takes every world_size-th of the shuffled samples, from the r-th on. With a .global_batch of n:
 * of each n samples in a row rank r takes numbers [n*r/world_size, n*(r+1)/world_size), and an incomplete batch at the end
 * is left out, so any number of ranks learns from the same batches. The loader's .batch is then this rank's part of it. */
#define tr_distributed_sampler(...) TR__NEW1(tr_distributed_sampler, count, __VA_ARGS__)
TR_API tr_sampler *tr_distributed_sampler_with(const tr_distributed_sampler_options *options);

/* Which epoch its order is drawn for, from 0. A loader with this sampler goes on with that epoch when it begins its
 * next one, unless tr_loader_set_epoch() or tr_loader_seek() is called later: what was set last counts. */
TR_API TR_MUST_CHECK tr_status tr_sampler_set_epoch(tr_sampler *sampler, int64_t epoch);
/* How many this rank takes in an epoch; 0 in error. */
TR_API int64_t tr_sampler_length(const tr_sampler *sampler);
/* How many of these, at the end, are repeated to make ranks even. */
TR_API int64_t tr_sampler_duplicates(const tr_sampler *sampler);
/* Writes them, tr_sampler_length() many. */
TR_API TR_MUST_CHECK tr_status tr_sampler_indices(const tr_sampler *sampler, int64_t *out);

/* ---- The loader -------------------------------------------------------------------------------------------------- */

/* Batches of a dataset's samples, made ahead by workers. An object; one thread uses it. */
typedef struct tr_loader tr_loader;

/* Makes a batch of samples: fills *batch as a tr_dataset_get does its sample. Called from several threads at once. */
typedef tr_status (*tr_collate)(const tr_sample *samples, int64_t count, void *user, tr_sample *batch);

/* What becomes of a sample that cannot be made, as its file is damaged or its function fails. */
typedef enum tr_on_bad {
    TR_FAIL, /* tr_loader_next() fails, with its number and what was wrong */
    TR_SKIP, /* another sample takes its place: batches stay as large, and epochs as long, on every rank. It is drawn by
                (seed, epoch, number of the bad one), comes at the batch's end, and counts among the batch's duplicates,
                so that an evaluation leaves it out. The log names the bad one and its file, once; tr_loader_skipped()
                counts it. When a hundred others cannot be made either, tr_loader_next() fails. Want of memory, samples
                of other shapes, and worker processes that die are failures as ever */
} tr_on_bad;

typedef struct tr_loader_options {
    size_t size;
    const char *given;
    tr_dataset *set;
    int64_t batch;        /* samples in a batch of this rank, as a DataLoader's batch_size; default 32 */
    int workers;          /* threads; 0: none, tr_loader_next() makes each batch when it is asked for */
    bool processes;       /* each worker makes batches in a process of its own; when that crashes, it is an error that
                             names the signal and the samples. main() begins with TR_SPAWN_ENTRY, set is a
                             tr_dataset_from() or one of files, and .collate is without .user */
    int prefetch;         /* batches that are ready or under way, per worker; default 2 */
    bool shuffle;         /* in an order of its own in every epoch; otherwise, as a DataLoader, in that of the numbers */
    uint64_t seed;        /* for the order and for each sample's random numbers */
    bool drop_last;       /* leave out a last batch that is not full */
    tr_group *group;      /* whose ranks share an epoch, by a tr_distributed_sampler(); NULL: this process alone */
    tr_sampler *sampler;  /* instead of .shuffle and .group */
    tr_collate collate;   /* NULL: samples are stacked along a new first dimension */
    void *user;           /* for collate */
    tr_device device;     /* where batches go */
    tr_on_bad on_bad;     /* TR_SKIP: samples that cannot be made are left out */
} tr_loader_options;
#define tr_loader_new(...) tr_loader_new_with(TR__NAMED_OPTIONS1(tr_loader_options, set, __VA_ARGS__))
TR_API tr_loader *tr_loader_new_with(const tr_loader_options *options);

typedef struct tr_batch {
    tr_tensor *x, *y;        /* [count, …]; y is NULL when samples have none */
    int64_t count;
    int64_t duplicates;      /* the last so many only make ranks even, or replace bad ones: not to be counted in an
                                evaluation */
    const int64_t *indices;  /* the samples' numbers, count of them */
} tr_batch;
/* The next batch of the epoch, or TR_END when there is none: the call after that begins the next epoch. The order does
 * not depend on the workers. What batch points to is the loader's, valid until the next call; a graph keeps what it
 * needs, and tr_keep() keeps a tensor. After a failure, whose message names the sample, the next call goes on with the
 * batch after it. */
TR_API TR_MUST_CHECK tr_status tr_loader_next(tr_loader *loader, tr_batch *batch);
/* Which epoch comes next, from 0; ends one that is under way. Epochs follow each other, from 0, unless this or
 * tr_sampler_set_epoch() says otherwise. */
TR_API TR_MUST_CHECK tr_status tr_loader_set_epoch(tr_loader *loader, int64_t epoch);
/* Which batch comes next: of that epoch and with that number, both from 0. What a training that is resumed begins with. */
TR_API TR_MUST_CHECK tr_status tr_loader_seek(tr_loader *loader, int64_t epoch, int64_t batch);
/* Batches in an epoch, on this rank; 0 in error. */
TR_API int64_t tr_loader_batches(const tr_loader *loader);
/* How many bad samples were skipped so far, in the batches that were handed out. A sample counts each time that it was
 * to be in one, so in an epoch any number of ranks counts as many together, but for those that make ranks even. 0 in
 * error. */
TR_API int64_t tr_loader_skipped(const tr_loader *loader);

/* ---- Tokenizers -------------------------------------------------------------------------------------------------- */

/* Cuts texts into tokens and puts them together again: GPT-2's byte pairs, or BERT's word pieces. An object; read-only
 * once made, so several threads may use it at the same time. */
typedef struct tr_tokenizer tr_tokenizer;

typedef struct tr_tokenizer_options {
    size_t size;
    const char *given;
    const char *path; /* Hugging Face's files: a tokenizer.json, a vocab.json with merges.txt beside it, a vocab.txt; or a
                         folder in which one of these is, the first of them */
    bool cased;       /* of a vocab.txt: capitals and accents stay; tokenizer_config.json in a folder may say so, too */
} tr_tokenizer_options;
/* A tokenizer.json whose parts are not those of GPT-2 or BERT is TR_UNSUPPORTED, and the message names them. */
#define tr_tokenizer(...) TR__NEW1(tr_tokenizer, path, __VA_ARGS__)
TR_API tr_tokenizer *tr_tokenizer_with(const tr_tokenizer_options *options);
/* Writes it as a tokenizer.json, which Hugging Face's tokenizers read, too. */
TR_API TR_MUST_CHECK tr_status tr_tokenizer_save(const tr_tokenizer *tokenizer, const char *path);

/* How many tokens there are: ids are 0 to one less. 0 in error. */
TR_API int tr_tokenizer_vocab(const tr_tokenizer *tokenizer);
/* A token's id, "[MASK]" or " the"; -1: there is none. */
TR_API int tr_tokenizer_id(const tr_tokenizer *tokenizer, const char *token);
/* A token's bytes, *bytes of them (no NUL behind), the tokenizer's own: of byte pairs any bytes, of word pieces with ## in
 * front inside a word. NULL: there is no such id. */
TR_API const char *tr_tokenizer_token(const tr_tokenizer *tokenizer, int id, size_t *bytes);

typedef struct tr_encode_options {
    size_t size;
    const char *given;
    const tr_tokenizer *tokenizer;
    const char *text;   /* UTF-8. Bytes that are none: byte pairs keep them as they are, word pieces leave them out */
    size_t bytes;       /* of text; default: up to its NUL */
    const char *pair;   /* a second text, or NULL */
    bool bare;          /* word pieces: without [CLS] in front and [SEP] behind each text */
    bool plain;         /* the names of special tokens in the text are text, as is wise where strangers wrote it */
    tr_tensor **types;  /* i32 [tokens]: 0 for the first text, 1 for the pair; or NULL */
} tr_encode_options;
/* -> i32 [tokens], on the CPU */
#define tr_encode(...) TR__NEW2(tr_encode, tokenizer, text, __VA_ARGS__)
TR_API tr_tensor *tr_encode_with(const tr_encode_options *options);

typedef struct tr_decode_options {
    size_t size;
    const char *given;
    const tr_tokenizer *tokenizer;
    const tr_tensor *ids; /* i32 or i64, of any shape */
    char *text;           /* gets as many bytes of the text as there is room for, and a NUL */
    size_t bytes;
    size_t *length;       /* how long the text is; or NULL */
    bool special;         /* special tokens are written, too */
} tr_decode_options;
#define tr_decode(...) TR__NEW2(tr_decode, tokenizer, ids, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_decode_with(const tr_decode_options *options);

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* A text as tokens: its bytes (0 … 255), or what a tokenizer makes of them. An object. */
typedef struct tr_text tr_text;

typedef struct tr_text_options {
    size_t size;
    const char *given;
    const char *path;        /* a file, or a folder whose text files are read in order of their names, sub-folders too;
                                files with a NUL byte and names that start with a dot are left out */
    const char *suffixes;    /* for a folder: only names that end so, ".c .h .md"; NULL: all */
    double validation;       /* the share at the end that is for validation; default 0.1 */
    const tr_tokenizer *tokenizer; /* NULL: tokens are bytes */
} tr_text_options;
#define tr_text(...) TR__NEW1(tr_text, path, __VA_ARGS__)
TR_API tr_text *tr_text_with(const tr_text_options *options);
TR_API int64_t tr_text_bytes(const tr_text *text, bool validation);
TR_API int64_t tr_text_tokens(const tr_text *text, bool validation);
TR_API int tr_text_files(const tr_text *text);
/* A number that tells texts apart (no cryptographic one), by their tokens: to see whether a resumed training has the same. */
TR_API uint64_t tr_text_hash(const tr_text *text);

typedef struct tr_tokenizer_train_options {
    size_t size;
    const char *given;
    const tr_text *text; /* without a tokenizer; its training part is learned from */
    int vocab;           /* tokens: the 256 bytes, merges, and "<|endoftext|>" last; default 4,096. Fewer when the text has no more */
    int least;           /* how often a pair must stand to become a token; default 2 */
} tr_tokenizer_train_options;
/* A byte-pair tokenizer with a vocabulary of a text's own, the same as Hugging Face's trainer finds. */
#define tr_tokenizer_train(...) TR__NEW1(tr_tokenizer_train, text, __VA_ARGS__)
TR_API tr_tokenizer *tr_tokenizer_train_with(const tr_tokenizer_train_options *options);

/* How windows become those of a masked language model (Devlin et al. 2019): of the tokens a share is to be found out; of
 * these eight in ten are replaced by the mask, one in ten by a token at random, and one stays. The share is the same in each
 * window, so that a batch in parts is that batch. */
typedef struct tr_masking {
    int32_t begin, end; /* stand first and last in each window; -1: none does */
    int32_t mask;
    int32_t vocab;      /* tokens at random are of 0 … vocab-1 */
    double share;       /* 0: 0.15 */
} tr_masking;

typedef struct tr_text_batch_options {
    size_t size;
    const char *given;
    tr_text *text;
    int64_t batch;           /* windows in the batch */
    int64_t context;         /* tokens in a window */
    bool validation;         /* from the validation part: windows follow each other. The last batch may hold fewer; past it,
                                TR_END */
    uint64_t seed;           /* training: window starts depend on (seed, step, first_sample + i) only, so any number */
    uint64_t step;           /* of ranks draws the same global batch */
    uint64_t first_sample;   /* the global number of the first window */
    const tr_masking *masking; /* NULL: none */
} tr_text_batch_options;
/* x, y: i32 [batch, context] on the CPU; y is x one token later, or with masking the tokens to be found out and -100
 * elsewhere. Without TR_OK both are in error. */
#define tr_text_batch(x, y, ...) \
    tr_text_batch_with(TR__BRACES3(tr_text_batch_options, text, batch, context, __VA_ARGS__), (x), (y))
TR_API TR_MUST_CHECK tr_status tr_text_batch_with(const tr_text_batch_options *options, tr_tensor **x, tr_tensor **y);

#ifdef __cplusplus
}
#endif

#endif
