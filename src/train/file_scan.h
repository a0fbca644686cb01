/* Reading a safetensors file through, without keeping it. */
#ifndef TR_TRAIN_FILE_SCAN_H
#define TR_TRAIN_FILE_SCAN_H

#include "tensor/finite.h"
#include "train/safetensors_header.h"

/* A scan computes checksums, and what is not finite, by all threads of the CPU, while one of them hashes what was read
 * before. */
typedef struct tr__file_scan {
    const tr__safetensors_reader *r;
    char *buffers[2];
    int turn;            /* which of them is read into next; the other one is still to be hashed, */
    size_t hashed_bytes; /* so many bytes of it */
    tr__sha256 hash;     /* of all the bytes of the file, in their order; without a context: none is wanted */
} tr__file_scan;

/* Begins with the header of a file that is open. To be ended, also after a failure. */
tr_status tr__file_scan_begin(tr__file_scan *scan, const tr__safetensors_reader *r, bool with_hash);
/* Each tensor, in the order of r->by_offset. TR_FORMAT when its bytes are not those of the record, or are no values of
 * its dtype; the scan goes on with the next one all the same. */
tr_status tr__file_scan_tensor(tr__file_scan *scan, const tr__safetensors_entry *e, tr__not_finite *found);
/* After the last tensor: is the hash that of the record? Else TR_FORMAT. */
tr_status tr__file_scan_check(tr__file_scan *scan);
void tr__file_scan_end(tr__file_scan *scan);

#endif
