/* Whole files, and folders. */
#ifndef TR_DATA_FILE_H
#define TR_DATA_FILE_H

#include "base/object.h"

#include <dirent.h>

/* Reads a regular file into memory that the caller frees, with a NUL behind it (cJSON before 1.7.18 may read
 * that of a text whose length it is told). Messages do not name it. */
tr_status tr__file_read(const char *path, unsigned char **bytes, size_t *count);
/* As scandir(): the entries that do not begin with a dot, by the bytes of their names, so that every machine has one order. */
int tr__folder_scan(const char *path, struct dirent ***entries);

#endif
