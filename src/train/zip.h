/* ZIP archives as .npz files are: members stored or deflated, of any size (zip64), without encryption. */
#ifndef TR_TRAIN_ZIP_H
#define TR_TRAIN_ZIP_H

#include "base/atomic_file.h"
#include "train/plain_file.h"

#include <stdio.h>
#include <zlib.h>

/* What archives begin the parts of their structure with, and the sizes of what is always there. */
enum {
    TR__ZIP_LOCAL = 0x04034b50, TR__ZIP_LOCAL_BYTES = 30,
    TR__ZIP_CENTRAL = 0x02014b50, TR__ZIP_CENTRAL_BYTES = 46,
    TR__ZIP_END64 = 0x06064b50, TR__ZIP_END64_BYTES = 56,
    TR__ZIP_LOCATOR = 0x07064b50, TR__ZIP_LOCATOR_BYTES = 20,
    TR__ZIP_END = 0x06054b50, TR__ZIP_END_BYTES = 22,
    TR__ZIP_EXTRA64 = 1, /* the extra field with sizes of 64 bits */
    TR__ZIP_STORED = 0, TR__ZIP_DEFLATED = 8,
    TR__ZIP_ENCRYPTED = 1, TR__ZIP_UTF8 = 0x800, /* flags */
    TR__ZIP_MOST_DIRECTORY = 8 << 20, /* bytes that we read and write */
};

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

typedef struct tr__zip_member {
    char *name;             /* UTF-8 */
    uint64_t at;            /* of its header in the file; once it is open, of its data */
    uint64_t packed, bytes; /* as it lies there, and unpacked */
    uint32_t checksum;
    int method;
} tr__zip_member;

typedef struct tr__zip {
    tr__plain_file file;
    tr__zip_member *members;
    int count;
} tr__zip;

/* Reads the directory. Members must not overlap, and must lie before it, or the archive is refused. */
tr_status tr__zip_open(tr__zip *zip, const char *path);
void tr__zip_close(tr__zip *zip);

/* One member's bytes, in order. */
typedef struct tr__zip_stream {
    const tr__zip *zip;
    const char *name;
    uint64_t at, packed, bytes; /* in the file; left there; left to read */
    uint32_t checksum, sum;     /* as the directory has it; of what was read */
    bool deflated;
    z_stream inflation;
    unsigned char buffer[1 << 15];
} tr__zip_stream;

tr_status tr__zip_begin(tr__zip_stream *stream, const tr__zip *zip, const tr__zip_member *member);
/* Reads exactly so many bytes, no more than are left. After the last byte a wrong checksum is an error. */
tr_status tr__zip_read(tr__zip_stream *stream, void *to, uint64_t bytes);
void tr__zip_end(tr__zip_stream *stream);

/* ---- Writing --------------------------------------------------------------------------------------------------------- */

typedef struct tr__zip_writer {
    tr__atomic_file file;
    bool compress;
    uint64_t at; /* in the file */
    uint64_t count;
    FILE *directory; /* into: */
    char *directory_text;
    size_t directory_bytes;
} tr__zip_writer;

typedef struct tr__zip_piece {
    const void *data;
    uint64_t bytes;
} tr__zip_piece;

tr_status tr__zip_create(tr__zip_writer *writer, const char *path, bool compress);
/* A member of several pieces. */
tr_status tr__zip_add(tr__zip_writer *writer, const char *name, const tr__zip_piece *pieces, int n);
/* Puts the archive in its place, or gives it up when status is a failure, which it returns. */
tr_status tr__zip_finish(tr__zip_writer *writer, tr_status status);

#endif
