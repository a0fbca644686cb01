/* Opening regular files alone, and how much may come of one. */
#ifndef TR_BASE_REGULAR_FILE_H
#define TR_BASE_REGULAR_FILE_H

#include <stdint.h>

/* A descriptor to read a regular file with, and its size; -1 with errno: EISDIR for a folder, ENODEV for what is neither.
 * Nothing holds it up, as open() is by a FIFO without a writer. */
int tr__regular_open(const char *path, int64_t *bytes);

/* The most bytes that a file of so many may hold when it is unpacked: as many as the program allows, or if that is 0,
 * 64 MiB or 32 times as many as it has, whichever is more. A crafted file unpacks to a thousand times its size. */
int64_t tr__unpacked_most(int64_t file_bytes, int64_t allowed);

#endif
