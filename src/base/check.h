/* TRIREME_CHECK: words between commas, each of which asks for a check that costs time. */
#ifndef TR_BASE_CHECK_H
#define TR_BASE_CHECK_H

#include <stdbool.h>

bool tr__check_asks(const char *word);

#endif
