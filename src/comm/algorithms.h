/* The table of algorithms, from where a program or its user has it. */
#ifndef TR_COMM_ALGORITHMS_H
#define TR_COMM_ALGORITHMS_H

#include "comm/algo/choice.h"

/* The table as text, to be freed. given: rows, or "@FILE" with a file of rows; NULL: TRIREME_ALGORITHMS. *text is NULL when nothing
 * is given: the built-in table is enough. */
tr_status tr__algorithms_text(const char *given, char **text);

#endif
