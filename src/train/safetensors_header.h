/* The header of a safetensors file, and what lies where behind it. */
#ifndef TR_TRAIN_SAFETENSORS_HEADER_H
#define TR_TRAIN_SAFETENSORS_HEADER_H

#include "train/file_record.h"
#include "train/plain_file.h"

#include <cjson/cJSON.h>

enum { TR__MOST_HEADER = 100 << 20 }; /* bytes; the format's own limit is about the same */

extern const char tr__metadata_key[];                            /* "__metadata__" */
extern const char *const tr__safetensors_dtypes[TR_DTYPE_COUNT]; /* what the format calls them */

typedef struct tr__safetensors_entry {
    const char *name; /* in the JSON tree */
    tr_dtype dtype;
    tr_shape shape;
    uint64_t begin, end; /* in the data */
} tr__safetensors_entry;

typedef struct tr__safetensors_reader {
    tr__plain_file file;
    uint64_t header_bytes, data_begin, data_bytes; /* the data lie behind the header and its length */
    uint32_t header_crc32c;
    cJSON *json;
    tr__safetensors_entry *entries;          /* in the header's order, */
    const tr__safetensors_entry **by_offset; /* and in the data's: one behind the other, without a hole */
    int count;
    const tr__file_record *record; /* what the file is to contain; NULL: not known */
} tr__safetensors_reader;

/* Reads the header, holds it against the record (NULL: none is known), and adds its metadata to a list. To be closed
 * also after a failure. */
tr_status tr__safetensors_open(tr__safetensors_reader *r, const char *path, const tr__file_record *record,
                               tr_tensor_list *metadata);
void tr__safetensors_close(tr__safetensors_reader *r);

/* Is it a whole number from 0 to 2^53? JSON's come as doubles, which are exact to there. */
bool tr__json_whole(const cJSON *number, uint64_t *out);
/* TR_FORMAT, with the file's path in front. */
tr_status tr__file_damaged(const tr__safetensors_reader *r, const char *format, ...) TR_PRINTF(2, 3);
/* Is a tensor's checksum that of the record? Else TR_FORMAT, with the place in the file. */
tr_status tr__safetensors_check(const tr__safetensors_reader *r, const tr__safetensors_entry *e, uint32_t sum);

#endif
