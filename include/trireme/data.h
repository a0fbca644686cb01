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

/* Samples by index. An object; read-only once made, so several threads may read it at the same time. */
typedef struct tr_dataset tr_dataset;

#define TR_SAMPLE_MORE 6

/* One sample, without the batch dimension. A field that samples do not have is NULL. more holds up to six further
 * tensors, such as an attention mask and token types beside ids x and label y, a second image, or boxes. */
typedef struct tr_sample {
    tr_tensor *x, *y;
    tr_tensor *more[TR_SAMPLE_MORE];
} tr_sample;

/* The arguments of a program's own sample function. */
typedef struct tr_sample_call {
    int64_t index; /* in its dataset, from 0 */
    uint64_t seed; /* for this sample's random numbers. It depends on (the loader's seed, epoch, index) alone, so any
                      number of workers and ranks draws the same */
    void *user;
} tr_sample_call;

/* Fills *out, which arrives zeroed, with CPU tensors, of the innermost scope or kept by the dataset. Called from several
 * threads at once. A failure reaches the training loop with the sample's index in front of its message. */
typedef tr_status (*tr_dataset_get)(const tr_sample_call *call, tr_sample *out);

typedef struct tr_dataset_options {
    size_t size;
    const char *given;
    int64_t count;                 /* samples */
    tr_dataset_get get;
    void *user;
    void (*release)(void *user);   /* called when the dataset is destroyed; not when making it failed */
    const char *name;              /* for messages; NULL: "dataset" */
} tr_dataset_options;
/* A program's own dataset. The samples of a batch must have the same fields, each of the same shape and dtype, unless the
 * loader has a .collate. */
#define tr_dataset_new(...) tr_dataset_new_with(TR__BRACES2(tr_dataset_options, count, get, __VA_ARGS__))
TR_API tr_dataset *tr_dataset_new_with(const tr_dataset_options *options);

/* A dataset in error with a message of the program's own, for functions that make one: `return
 * tr_dataset_fail(TR_FORMAT, "…", …);` */
TR_API tr_dataset *tr_dataset_fail(tr_status status, const char *format, ...) TR_PRINTF(2, 3);

/* A dataset that worker processes can make again, as a loader with .processes needs: make() is called in each process,
 * with a copy of the argument's bytes (no pointers into this process), and must give the same samples. make is a
 * function of the program or of a library that it has loaded. The datasets of files below, and slices of them, need no
 * such function. */
typedef tr_dataset *(*tr_dataset_make)(const void *argument, size_t bytes);
TR_API tr_dataset *tr_dataset_from(tr_dataset_make make, const void *argument, size_t bytes);

typedef struct tr_dataset_tensors_options {
    size_t size;
    const char *given;
    tr_tensor *x, *y;                /* contiguous CPU tensors with a row for each sample, which the dataset holds; y may */
    tr_tensor *more[TR_SAMPLE_MORE]; /* be NULL, and so may each of .more */
} tr_dataset_tensors_options;
/* Sample i is row i of each tensor: tr_dataset_tensors(ids, labels, .more = {mask, types}). */
#define tr_dataset_tensors(...) \
    tr_dataset_tensors_with(TR__BRACES2(tr_dataset_tensors_options, x, y, __VA_ARGS__))
TR_API tr_dataset *tr_dataset_tensors_with(const tr_dataset_tensors_options *options);
/* Samples [begin, end) of another dataset. */
TR_API tr_dataset *tr_dataset_slice(tr_dataset *set, int64_t begin, int64_t end);
/* The samples of another dataset at these indices, in this order. */
TR_API tr_dataset *tr_dataset_subset(tr_dataset *set, const int64_t *indices, int64_t count);

typedef struct tr_dataset_split_options {
    size_t size;
    const char *given;
    tr_dataset *set;
    const double *shares; /* [count] numbers of samples, whose sum is that of the set; or fractions, whose sum is 1 */
    int count;            /* of the parts */
    tr_dataset **parts;   /* [count], gets them */
    uint64_t seed;        /* the same one gives the same parts, on all ranks and in every run */
} tr_dataset_split_options;
/* Divides a dataset's samples at random into parts, each in the order drawn: tr_dataset_split(set, (double[]){0.9, 0.1}, 2,
 * parts, .seed = 1). A fraction's number of samples is rounded down; the samples that are left go to the first parts, one
 * each. After a failure all parts are in error. */
#define tr_dataset_split(...) \
    tr_dataset_split_with(TR__BRACES4(tr_dataset_split_options, set, shares, count, parts, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_dataset_split_with(const tr_dataset_split_options *options);

/* Applies function to another dataset's samples: *sample arrives filled, and leaves as a tr_dataset_get would fill
 * it. */
typedef tr_status (*tr_dataset_function)(const tr_sample_call *call, tr_sample *sample);
TR_API tr_dataset *tr_dataset_map(tr_dataset *set, tr_dataset_function function, void *user);

typedef struct tr_image_set_options {
    size_t size;
    const char *given;
    const char *folder;
    bool train; /* the training set; otherwise the test set */
    bool raw;   /* x as u8 0 … 255; otherwise f32 0 … 1 */
    int64_t max_bytes; /* the limit of each of MNIST's files, as in tr_idx_load() */
} tr_image_set_options;
/* MNIST and datasets in its format (Fashion-MNIST, KMNIST, …): train-images-idx3-ubyte, train-labels-idx1-ubyte or
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
    int height, width;  /* the size that images are scaled to; smaller ones are made by averaging */
    bool raw;           /* as in tr_image_set_options */
    int64_t max_pixels; /* the most pixels, width x height, that an image may have; 0: 2^26, 67 million. Images are
                           scaled row by row, in a few rows of memory. Progressive JPEG and interlaced PNG files are
                           decoded whole, in at most three bytes per pixel */
} tr_image_folder_options;
/* Images in a sub-folder for each class; classes are numbered in the order of their names. Files are JPEG or PNG (.jpg,
 * .jpeg, .png; the content decides), and are read when a sample is needed. x: RGB, [3, height, width], y: i64, a
 * scalar. A file that is damaged or has more than .max_pixels is TR_FORMAT when it is read, and the message names
 * it. */
#define tr_image_folder(...) tr_image_folder_with(TR__NAMED_OPTIONS1(tr_image_folder_options, folder, __VA_ARGS__))
TR_API tr_dataset *tr_image_folder_with(const tr_image_folder_options *options);
/* The name of a class of an image folder, "cat"; NULL for a label out of range, and for a slice of an image folder. */
TR_API const char *tr_image_folder_class(const tr_dataset *set, int64_t label);

typedef struct tr_idx_load_options {
    size_t size;
    const char *given;
    const char *path;
    int64_t max_bytes; /* the most bytes of elements; 0: of a compressed file 64 MiB or 32 times its size, whichever is
                          more; of a plain one any number */
} tr_idx_load_options;
/* The tensor of an IDX file, plain or compressed with gzip: u8, i32, f32 or f64. A file with more than .max_bytes is
 * refused (TR_FORMAT) before memory is allocated: a crafted file unpacks to a thousand times its size. */
#define tr_idx_load(...) TR__NEW1(tr_idx_load, path, __VA_ARGS__)
TR_API tr_tensor *tr_idx_load_with(const tr_idx_load_options *options);

TR_API int64_t tr_dataset_count(const tr_dataset *set); /* 0 in error */
/* One sample, in the innermost scope; its random numbers are those of seed 0 and epoch 0. */
TR_API TR_MUST_CHECK tr_status tr_dataset_at(tr_dataset *set, int64_t index, tr_sample *out);

/* ---- Samplers ---------------------------------------------------------------------------------------------------- */

/* Says which samples a rank takes in an epoch, and in which order. An object. */
typedef struct tr_sampler tr_sampler;

typedef struct tr_distributed_sampler_options {
    size_t size;
    const char *given;
    int64_t count;         /* samples in the dataset */
    tr_group *group;       /* gives rank and world size; NULL: the two fields below do. With it the call is collective, and
                              TR_MISMATCH on all ranks where the other fields differ */
    int rank, world_size;  /* a world_size of 0 is 1 */
    bool in_order;         /* by index; otherwise shuffled by Philox, keyed by (seed, epoch) */
    uint64_t seed;         /* the same on all ranks */
    bool drop_last;        /* leave the last samples out to make ranks even; otherwise the first samples are repeated */
    int64_t global_batch;  /* samples in a step of all ranks together: see below; 0: PyTorch's rule */
    const char *file;      /* where the call is, for messages: the macro sets both */
    int line;
} tr_distributed_sampler_options;
/* PyTorch's rule: rank r takes every world_size-th of the shuffled samples, from the r-th on. With a .global_batch of
 * n, rank r takes samples [n*r/world_size, n*(r+1)/world_size) of each n in a row, and an incomplete batch at the end
 * is left out. So any number of ranks learns from the same batches. The loader's .batch is then this rank's part of
 * n. */
#define tr_distributed_sampler(...) TR__NEW1(tr_distributed_sampler, count, __VA_ARGS__, TR__HERE)
TR_API tr_sampler *tr_distributed_sampler_with(const tr_distributed_sampler_options *options);

/* Sets the epoch whose order is drawn, from 0. The next epoch of a loader with this sampler is that one; a later call
 * of tr_loader_set_epoch() or tr_loader_seek() overrides it. */
TR_API TR_MUST_CHECK tr_status tr_sampler_set_epoch(tr_sampler *sampler, int64_t epoch);
/* Samples that this rank takes in an epoch; 0 in error. */
TR_API int64_t tr_sampler_length(const tr_sampler *sampler);
/* How many of them, at the end, are duplicates that make ranks even. */
TR_API int64_t tr_sampler_duplicates(const tr_sampler *sampler);
/* Writes their indices: out has room for tr_sampler_length(). */
TR_API TR_MUST_CHECK tr_status tr_sampler_indices(const tr_sampler *sampler, int64_t *out);

/* ---- The loader -------------------------------------------------------------------------------------------------- */

/* Batches of a dataset's samples, made ahead by workers. An object; one thread uses it. */
typedef struct tr_loader tr_loader;

/* Makes a batch of samples: fills *batch as a tr_dataset_get fills a sample. Called from several threads at once. */
typedef tr_status (*tr_collate)(const tr_sample *samples, int64_t count, void *user, tr_sample *batch);

/* What happens when a sample is bad: its file is damaged, or its function fails. */
typedef enum tr_on_bad {
    TR_FAIL, /* tr_loader_next() fails; the message has the sample's index and the reason */
    TR_SKIP, /* another sample replaces it, so batches keep their size and epochs their length on every rank. The
                replacement is drawn by (seed, epoch, the bad sample's index), stands at the batch's end, and counts
                among the batch's duplicates, so an evaluation leaves it out. The log names the bad sample and its file
                once; tr_loader_skipped() counts it. When a hundred replacements are bad too, tr_loader_next() fails. A
                lack of memory, a mismatched shape and a dead worker process are failures in either case */
} tr_on_bad;

typedef struct tr_loader_options {
    size_t size;
    const char *given;
    tr_dataset *set;
    int64_t batch;        /* samples in a batch of this rank, as a DataLoader's batch_size; default 32 */
    int workers;          /* worker threads; 0: tr_loader_next() makes each batch itself */
    bool processes;       /* workers are processes; a crash is an error that names the signal and the samples. main()
                             begins with TR_SPAWN_ENTRY, set is a tr_dataset_from() or a dataset of files, and .collate
                             has no .user */
    int prefetch;         /* batches per worker that are ready or being made; default 2 */
    bool shuffle;         /* a new order in every epoch; otherwise samples come by index, as in a DataLoader */
    uint64_t seed;        /* for the order and for each sample's random numbers */
    bool drop_last;       /* leave out an incomplete batch at the end */
    tr_group *group;      /* its ranks divide each epoch by a tr_distributed_sampler(), with the same options on all
                             ranks; tr_loader_new() is then collective; NULL: this process alone */
    tr_sampler *sampler;  /* instead of .shuffle and .group */
    tr_collate collate;   /* NULL: each field of the samples is stacked along a new first dimension */
    void *user;           /* for collate */
    tr_device device;     /* where batches go */
    tr_on_bad on_bad;     /* TR_SKIP: bad samples are replaced */
    const char *file;     /* where the call is, for messages: the macro sets both */
    int line;
} tr_loader_options;
#define tr_loader_new(...) tr_loader_new_with(TR__NAMED_OPTIONS1(tr_loader_options, set, __VA_ARGS__, TR__HERE))
TR_API tr_loader *tr_loader_new_with(const tr_loader_options *options);

typedef struct tr_batch {
    tr_tensor *x, *y;        /* [count, …]; y is NULL when samples have none, and so is each of more */
    tr_tensor *more[TR_SAMPLE_MORE];
    int64_t count;
    int64_t duplicates;      /* so many samples at the end only make ranks even, or replace bad ones: an evaluation
                                leaves them out */
    const int64_t *indices;  /* [count], of the samples */
} tr_batch;
/* The next batch, or TR_END at the end of the epoch; the call after that begins the next epoch. The order does not
 * depend on the workers. The loader owns what batch points to, and it is valid until the next call; a graph keeps what
 * it needs, and tr_keep() keeps a tensor. A failure's message names the sample; the next call continues with the batch
 * after it. TR_INVALID when the dataset has samples and an epoch has no batch. */
TR_API TR_MUST_CHECK tr_status tr_loader_next(tr_loader *loader, tr_batch *batch);
/* Ends the current epoch and sets the next one, from 0. Without this or tr_sampler_set_epoch(), epochs count up from
 * 0. */
TR_API TR_MUST_CHECK tr_status tr_loader_set_epoch(tr_loader *loader, int64_t epoch);
/* Sets the next batch by epoch and number, both from 0: how a resumed training begins. */
TR_API TR_MUST_CHECK tr_status tr_loader_seek(tr_loader *loader, int64_t epoch, int64_t batch);
/* Batches in an epoch, on this rank; 0 for a loader in error and for an empty set. An empty set is no error, because
 * one rank's set may be empty: each tr_loader_next() is then TR_END. A loop that counts steps must ask for this number
 * first. */
TR_API int64_t tr_loader_batches(const tr_loader *loader);
/* How many bad samples were skipped in the batches so far; a sample counts each time that a batch should have had it.
 * So the ranks' counts of an epoch have the same sum for any number of ranks, apart from duplicates. 0 in error. */
TR_API int64_t tr_loader_skipped(const tr_loader *loader);

/* ---- Tokenizers -------------------------------------------------------------------------------------------------- */

/* Cuts texts into tokens and puts them together again: GPT-2's byte pairs, or BERT's word pieces. An object; read-only
 * once made, so several threads may use it at the same time. */
typedef struct tr_tokenizer tr_tokenizer;

typedef struct tr_tokenizer_options {
    size_t size;
    const char *given;
    const char *path; /* Hugging Face's files: a tokenizer.json, a vocab.json with merges.txt beside it, or a vocab.txt;
                         or a folder, of which the first of these is read */
    bool cased;       /* vocab.txt: capitals and accents stay; a folder's tokenizer_config.json can say so, too */
} tr_tokenizer_options;
/* A tokenizer.json with other parts than those of GPT-2 or BERT is TR_UNSUPPORTED; the message names the parts. */
#define tr_tokenizer_load(...) tr_tokenizer_load_with(TR__NAMED_OPTIONS1(tr_tokenizer_options, path, __VA_ARGS__))
TR_API tr_tokenizer *tr_tokenizer_load_with(const tr_tokenizer_options *options);
/* Writes a tokenizer.json, which Hugging Face's tokenizers can read. */
TR_API TR_MUST_CHECK tr_status tr_tokenizer_save(const tr_tokenizer *tokenizer, const char *path);

/* The vocabulary's size: ids are 0 to size - 1. 0 in error. */
TR_API int tr_tokenizer_vocab(const tr_tokenizer *tokenizer);
/* The id of a token such as "[MASK]" or " the"; -1 when the vocabulary does not have it. */
TR_API int tr_tokenizer_id(const tr_tokenizer *tokenizer, const char *token);
/* The bytes of a token, without a NUL; they belong to the tokenizer. *bytes: how many; or NULL. A byte-pair token is any
 * bytes, a word piece inside a word begins with ##. NULL for an id out of range. */
TR_API const char *tr_tokenizer_token(const tr_tokenizer *tokenizer, int id, size_t *bytes);

typedef struct tr_encode_options {
    size_t size;
    const char *given;
    const tr_tokenizer *tokenizer;
    const char *text;   /* UTF-8. Invalid bytes stay as they are in byte pairs, and are left out by word pieces */
    size_t bytes;       /* of text; default: up to its NUL */
    const char *pair;   /* a second text, or NULL */
    bool bare;          /* word pieces: without [CLS] in front and [SEP] behind each text */
    bool plain;         /* special tokens' names in the text are plain text: for text from strangers */
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
    char *text;           /* gets as much of the text as fits, and a NUL */
    size_t bytes;         /* the size of .text */
    size_t *length;       /* gets the whole text's length; or NULL */
    bool special;         /* write special tokens, too */
} tr_decode_options;
#define tr_decode(...) TR__NEW2(tr_decode, tokenizer, ids, __VA_ARGS__)
TR_API TR_MUST_CHECK tr_status tr_decode_with(const tr_decode_options *options);

/* A hash of a dataset's contents, not a cryptographic one. For tensors and files of numbers it covers their bytes
 * (above 64 MiB, 64 evenly spread pieces); for a folder of images, names and sizes; for slices and subsets, which
 * samples they have. A program's own functions are not covered; 0 when there is nothing else. `trireme train` compares
 * it when it resumes on images. */
TR_API uint64_t tr_dataset_hash(tr_dataset *set);

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* A text as tokens: its bytes (0 … 255), or what a tokenizer makes of them. An object. */
typedef struct tr_text tr_text;

typedef struct tr_text_options {
    size_t size;
    const char *given;
    const char *path;        /* a file, or a folder whose text files are read in order of their names, sub-folders too;
                                files with a NUL byte and names that start with a dot are left out */
    const char *suffixes;    /* for a folder: only names that end so, ".c .h .md"; NULL: all */
    double validation;       /* the fraction at the end that is the validation part; default 0.1 */
    const tr_tokenizer *tokenizer; /* NULL: tokens are bytes */
} tr_text_options;
#define tr_text_load(...) tr_text_load_with(TR__NAMED_OPTIONS1(tr_text_options, path, __VA_ARGS__))
TR_API tr_text *tr_text_load_with(const tr_text_options *options);
TR_API int64_t tr_text_bytes(const tr_text *text, bool validation);
TR_API int64_t tr_text_tokens(const tr_text *text, bool validation);
/* The tokens of one part: i32 [tr_text_tokens()], on the CPU; a copy. */
TR_API tr_tensor *tr_text_ids(const tr_text *text, bool validation);
TR_API int tr_text_files(const tr_text *text);
/* A hash of the tokens, not a cryptographic one: a resumed training compares it. */
TR_API uint64_t tr_text_hash(const tr_text *text);

typedef struct tr_tokenizer_train_options {
    size_t size;
    const char *given;
    const tr_text *text; /* of bytes, without a tokenizer; the training part is used */
    int vocab;           /* tokens: the 256 bytes, merges, and "<|endoftext|>" last; default 4,096. A short text gives
                            fewer */
    int least;           /* how often a pair must occur to become a token, of at most 4,096 bytes; default 2 */
} tr_tokenizer_train_options;
/* Learns a byte-pair tokenizer from a text, with the same result as Hugging Face's trainer. */
#define tr_tokenizer_train(...) TR__NEW1(tr_tokenizer_train, text, __VA_ARGS__)
TR_API tr_tokenizer *tr_tokenizer_train_with(const tr_tokenizer_train_options *options);

/* Masked language modelling (Devlin et al. 2019): the model predicts a fraction of each window's tokens. Of these,
 * eight in ten are replaced by the mask, one in ten by a random token, and one in ten stays. Every window has the same
 * fraction, so micro-batches add up to the batch. */
typedef struct tr_masking {
    int32_t begin, end; /* the first and the last token of each window; -1: none is added */
    int32_t mask;
    int32_t vocab;      /* random tokens are drawn from 0 … vocab-1 */
    double share;       /* the fraction; 0: 0.15 */
} tr_masking;

typedef struct tr_text_batch_options {
    size_t size;
    const char *given;
    tr_text *text;
    int64_t batch;           /* windows in the batch */
    int64_t context;         /* tokens in a window */
    tr_tensor **x, **y;      /* get what the model reads, and what it is to predict */
    bool validation;         /* windows of the validation part, in order: those from .first_sample on. Add the batch to
                                it until TR_END; the last batch may be incomplete. A .step is TR_INVALID */
    uint64_t seed;           /* training: window i starts at a place that depends on (seed, step, first_sample + i)
                                alone, */
    uint64_t step;           /* so any number of ranks draws the same global batch */
    uint64_t first_sample;   /* the global number of the batch's first window, in training and validation */
    const tr_masking *masking; /* NULL: none */
} tr_text_batch_options;
/* tr_text_batch(text, 32, 256, &x, &y, .step = step). x, y: i32 [batch, context] on the CPU; y is x one token later, or with
 * masking the tokens to predict and -100 elsewhere. After a failure both are in error. */
#define tr_text_batch(...) \
    tr_text_batch_with(TR__BRACES5(tr_text_batch_options, text, batch, context, x, y, __VA_ARGS__))
TR_API TR_MUST_CHECK tr_status tr_text_batch_with(const tr_text_batch_options *options);

#ifdef __cplusplus
}
#endif

#endif
