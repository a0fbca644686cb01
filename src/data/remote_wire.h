/* What a loader's thread and its worker process say to each other. */
#ifndef TR_DATA_REMOTE_WIRE_H
#define TR_DATA_REMOTE_WIRE_H

#include "data/dataset.h"

#include "base/function_place.h"

/* What the process is started with; the argument of make stands behind it. */
typedef struct tr__remote_job {
    tr__function_place make, collate;
    bool has_collate;
    tr_on_bad on_bad;
    int64_t whole;        /* samples that make() has made in the loader's process */
    int64_t begin, count; /* the part of what make() makes */
    int64_t choice;       /* as in the recipe */
    int64_t most;         /* samples in a batch */
    int socket, memory_fd;
    size_t bytes;         /* of make's argument */
} tr__remote_job;

/* The samples' numbers stand at the beginning of the memory. */
typedef struct tr__remote_request {
    uint64_t seed;
    int64_t count, once;
} tr__remote_request;

/* One field of the batch, row-major. */
typedef struct tr__remote_part {
    tr__layout layout; /* the batch's, with the batch dimension */
    size_t at;
} tr__remote_part;

typedef struct tr__remote_answer {
    tr_status status;
    tr__remote_part parts[TR__FIELDS];
    bool other_samples;   /* the batch holds others than asked for: their numbers stand where those stood */
    int64_t duplicates;
    size_t skips_at, skips_bytes; /* records of tr__skips, also of a batch that failed */
    char message[1024];
} tr__remote_answer;

/* Where the batch begins, and where the field behind one does. */
static inline size_t tr__remote_data_at(int64_t most)
{
    return ((size_t)most * sizeof(int64_t) + 4095) / 4096 * 4096;
}
static inline size_t tr__remote_behind(size_t at, size_t bytes) { return (at + bytes + 63) / 64 * 64; }

/* Maps all of the memory for batches, anew where it has grown. On failure *memory is NULL and *bytes 0. */
tr_status tr__remote_map(int fd, char **memory, size_t *bytes);

/* Runs in the process. */
tr_status tr__remote_serve(int number, void *argument, size_t bytes);

#endif
