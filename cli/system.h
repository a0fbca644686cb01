/* What the system says about itself. */
#ifndef TRIREME_CLI_SYSTEM_H
#define TRIREME_CLI_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* The first line of a file, without its newline; false when there is none. */
bool tr__first_line(const char *path, char *text, size_t bytes);
/* What follows "key:" in a file of such lines, as /proc has them. */
bool tr__line_of(const char *path, const char *key, char *text, size_t bytes);
double tr__meminfo_gib(const char *key);

/* What the control groups of this process allow: cores' time, and memory. Infinite without a limit. */
double tr__core_quota(void);
double tr__memory_limit_gib(void);
/* The memory that is left to take: what the machine has available, and no more than the control groups leave. */
double tr__memory_left_gib(void);

#endif
