/* TRIREME_CHECK: words between commas, each of which asks for a check that costs time. */
#ifndef TR_BASE_CHECK_H
#define TR_BASE_CHECK_H

#include <trireme/base.h>

bool tr__check_asks(const char *word);
/* A failure when one of the words asks for nothing. */
tr_status tr__check_words(void);

#endif
