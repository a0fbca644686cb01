/* What can be shown on the terminal. */
#ifndef TRIREME_CLI_TERMINAL_H
#define TRIREME_CLI_TERMINAL_H

#include <trireme/base.h>

#include <stdbool.h>
#include <stddef.h>

/* Does this process's locale write UTF-8? */
bool tr__terminal_utf8(void);
/* Columns of the terminal behind a descriptor, 80 when there is none. */
int tr__terminal_width(int fd);

/* Writes prefix, line and a newline, in one system call where that can be, so that lines of several processes never mix. Waits
 * where the descriptor does not block, as one that ssh or a terminal multiplexer shares may not. What cannot be written (a full
 * disk) is lost: a job is worth more than its output. The line may hold any bytes. */
void tr__print_line(int fd, const char *prefix, const char *line, size_t length);

/* The word as a shell is to be given it: itself, or in quotes where the shell would divide or change it; "" where it has
 * no room. */
const char *tr__shell_word(const char *word, char *text, size_t bytes);

/* From now on the library's warnings go to stderr, as "trireme COMMAND: …", also on a line that a progress bar has begun.
 * command: borrowed. */
void tr__print_warnings(const char *command);

#endif
