/* Opening regular files alone. */
#ifndef TR_BASE_REGULAR_FILE_H
#define TR_BASE_REGULAR_FILE_H

#include <stdint.h>

/* A descriptor to read a regular file with, and its size; -1 with errno: EISDIR for a folder, ENODEV for what is neither.
 * Nothing holds it up, as open() is by a FIFO without a writer. */
int tr__regular_open(const char *path, int64_t *bytes);

#endif
