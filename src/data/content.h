/*
 * What data consists of, in few bytes, so that ranks can see whether they have the same: a CRC-32C of what is in memory
 * (of more than 64 MiB a sample, of 64 pieces spread evenly), of the names and sizes of files, and of a few samples
 * where a function of the program makes them.
 */
#ifndef TR_DATA_CONTENT_H
#define TR_DATA_CONTENT_H

#include "comm/group/agree.h"

#include <trireme/data.h>

typedef struct tr__content {
    uint32_t crc32c;
    bool sampled;  /* of something large only pieces were read */
    bool computed; /* a function makes or changes samples: what it does is not in the sum */
} tr__content;

void tr__content_add(tr__content *content, const void *data, size_t bytes);

/* Says what a set consists of under a name, "data": "60000 samples of u8 [1, 28, 28] (CRC-32C 1a2b3c4d)"; and, where a
 * function makes samples, what three of them are under "data.samples", if their values are wanted. A NULL set adds
 * nothing. */
void tr__dataset_say(tr_dataset *set, const char *name, bool values, tr__facts *facts);

#endif
