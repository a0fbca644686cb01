/* Whole files. */
#ifndef TR_DATA_FILE_H
#define TR_DATA_FILE_H

#include "base/object.h"

/* Reads a regular file into memory that the caller frees. Messages do not name it. */
tr_status tr__file_read(const char *path, unsigned char **bytes, size_t *count);

#endif
