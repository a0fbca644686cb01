/*
 * The manifest of a checkpoint: manifest.json beside its safetensors files, written after them.
 *
 *   {
 *     "format": 1,                     of this file
 *     "save": "0f…",                   identifies the save; all its files carry it as "trireme.save"
 *     "step": 40, "loss": 1.75,        the validation loss, where one was measured
 *     "trireme": "0.1.0",              the version that saved it
 *     "settings": "3b…",               SHA-256 of what its trainer was told (settings.c); without one, of the model's metadata
 *     "files": {
 *       "model.safetensors": {"bytes": 512, "sha256": "9a…", "header": "08cf…", "tensors": {"0.weight": "77ab…", …}}, …
 *     },
 *     "crc32c": "1d0c…"                of all bytes before this line
 *   }
 *
 * The identifier is a hash of the step, the model's metadata and the checksums of all tensors of model and state: two
 * trainings that did the same save the same files. header and tensors are CRC-32C, in eight hexadecimal digits. It
 * protects against damage, not against somebody who writes another manifest: it is not signed.
 */
#ifndef TR_TRAIN_MANIFEST_H
#define TR_TRAIN_MANIFEST_H

#include "train/file_record.h"

enum { TR__MANIFEST_FILES = 4 };
#define TR__MOST_STEP (INT64_C(1) << 53) /* whole numbers up to here are exact in JSON */

typedef struct tr__manifest {
    char save[TR__SAVE_TEXT];
    int64_t step;
    double loss; /* NaN: none */
    char version[24];
    char settings[TR__SHA256_TEXT];
    struct {
        char name[64];
        tr__file_record record;
    } files[TR__MANIFEST_FILES];
    int count;
} tr__manifest;

/* Of model and state at a step, without files. To be freed. */
tr_status tr__manifest_new(tr__manifest *manifest, int64_t step, double loss, const tr_tensor_list *model,
                           const tr_tensor_list *state);
void tr__manifest_free(tr__manifest *manifest);

/* Saves a list as folder/name, and notes what it contains. */
tr_status tr__manifest_save_file(tr__manifest *manifest, const char *folder, const char *name,
                                 const tr_tensor_list *list);
/* Writes folder/manifest.json. */
tr_status tr__manifest_write(const tr__manifest *manifest, const char *folder);

/* Reads folder/manifest.json; to be freed also after a failure. TR_NOT_FOUND: there is none. */
tr_status tr__manifest_read(tr__manifest *manifest, const char *folder);
/* NULL: the save has no such file. */
const tr__file_record *tr__manifest_file(const tr__manifest *manifest, const char *name);

#endif
