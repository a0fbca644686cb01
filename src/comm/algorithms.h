/* The table of algorithms, from where a program or its user has it. */
#ifndef TR_COMM_ALGORITHMS_H
#define TR_COMM_ALGORITHMS_H

#include "comm/algo/choice.h"

/* given: rows, or "@FILE" with a file of rows; NULL: TRIREME_ALGORITHMS, or none. The built-in ones follow. */
tr_status tr__algorithms_read(const char *given, tr__choice_table *table);
/* The same as text, to be freed; *text is NULL when nothing is given: the built-in table is enough. */
tr_status tr__algorithms_text(const char *given, char **text);

#endif
