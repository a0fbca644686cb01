/* What can be shown on the terminal. */
#ifndef TRIREME_CLI_TERMINAL_H
#define TRIREME_CLI_TERMINAL_H

#include <stdbool.h>

/* Does this process's locale write UTF-8? */
bool tr__terminal_utf8(void);
/* Columns of the terminal behind a descriptor, 80 when there is none. */
int tr__terminal_width(int fd);

#endif
