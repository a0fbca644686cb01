/* Files that a test writes, in a folder of its own that goes when the test ends. */
#ifndef TRIREME_TEST_FILES_H
#define TRIREME_TEST_FILES_H

#include <stddef.h>

/* Group set-up and tear-down for cmocka. */
int files_begin(void **state);
int files_end(void **state);

/* The path of a name in the folder; valid for the next few calls. */
const char *files_path(const char *name);
/* Writes a file, gzip-compressed when asked to, and the folders on the way to it; returns its path. */
const char *files_write(const char *name, const void *bytes, size_t n);
const char *files_write_gz(const char *name, const void *bytes, size_t n);

#endif
