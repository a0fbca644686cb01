/* The parts of `trireme checkpoint`. */
#ifndef TRIREME_CLI_CHECKPOINT_H
#define TRIREME_CLI_CHECKPOINT_H

#include <trireme/trireme.h>

/* What a path is: a checkpoint (a folder with model.safetensors), a safetensors file, or a folder of checkpoints, which
 * has the newest one's step. */
typedef enum tr__path_kind { TR__PATH_NOTHING, TR__PATH_CHECKPOINT, TR__PATH_FILE, TR__PATH_FOLDER } tr__path_kind;
tr__path_kind tr__path_kind_of(const char *path);

/* A line on stdout; what a terminal would act on becomes '?'. */
void tr__line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* "1.5 MB", into text (at least 16 bytes), returned. */
char *tr__bytes_text(double bytes, char text[16]);

/* argv[0] is the name. Returns the exit code. */
int tr__checkpoint_diff(int argc, char **argv);

#endif
