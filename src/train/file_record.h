/*
 * What a safetensors file is to contain: its size, a hash of all its bytes, and a checksum of the header and of each tensor.
 * Saving computes it from memory, not from what the disk gives back; the manifest of a checkpoint keeps it; loading holds
 * each part against it.
 */
#ifndef TR_TRAIN_FILE_RECORD_H
#define TR_TRAIN_FILE_RECORD_H

#include "base/object.h"

#include <trireme/tensor.h>

/* Hexadecimal digits and a NUL: of a hash, and of the identifier that all files of a save carry in their metadata. */
enum { TR__SHA256_TEXT = 65, TR__SAVE_TEXT = 33 };
extern const char tr__save_key[]; /* the key of that identifier: "trireme.save" */
extern const char tr__settings_key[]; /* "trireme.settings": in the model's, a trainer's hash of what it was told */

typedef struct tr__tensor_record {
    char *name;
    uint32_t crc32c; /* of its bytes in the file */
} tr__tensor_record;

typedef struct tr__file_record {
    char save[TR__SAVE_TEXT];
    uint64_t bytes;
    char sha256[TR__SHA256_TEXT];
    uint32_t header_crc32c; /* of the header with its length in front, and the spaces behind it */
    tr__tensor_record *tensors;
    int count;
} tr__file_record;

void tr__file_record_free(tr__file_record *record);
/* Puts the tensors in order of their names, for tr__file_record_find(). */
void tr__file_record_sort(tr__file_record *record);
/* NULL: the file has no such tensor. */
const tr__tensor_record *tr__file_record_find(const tr__file_record *record, const char *name);

/* As tr_safetensors_save(), with id (NULL: none) in the metadata as "trireme.save", and fills in the record (NULL: none is wanted), to
 * be freed with tr__file_record_free() also after a failure. */
tr_status tr__safetensors_save(const char *path, const tr_tensor_list *list, const char *id, tr__file_record *record);
/* As tr_safetensors_load(); a part that differs from the record (NULL: none is known) is TR_FORMAT and named with its offset. */
tr_tensor_list *tr__safetensors_load(const char *path, const tr__file_record *record);

/* SHA-256, by OpenSSL. After a failure there is nothing to end. */
typedef struct tr__sha256 {
    void *context;
} tr__sha256;
tr_status tr__sha256_begin(tr__sha256 *hash);
void tr__sha256_add(tr__sha256 *hash, const void *data, size_t bytes);
void tr__sha256_end(tr__sha256 *hash, char text[TR__SHA256_TEXT]);

#endif
