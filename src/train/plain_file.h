/* Regular files that are read at any place. */
#ifndef TR_TRAIN_PLAIN_FILE_H
#define TR_TRAIN_PLAIN_FILE_H

#include "base/object.h"

typedef struct tr__plain_file {
    const char *path; /* the caller's */
    int fd;           /* -1: not open */
    uint64_t bytes;
} tr__plain_file;

/* what: what the file should be, for messages ("a safetensors file"). After a failure the file is not open. */
tr_status tr__plain_open(tr__plain_file *file, const char *path, const char *what);
/* Exactly so many bytes; TR_FORMAT when the file has become shorter. */
tr_status tr__plain_read(const tr__plain_file *file, uint64_t offset, void *to, uint64_t bytes);
void tr__plain_close(tr__plain_file *file);

#endif
