/* Random text, as in the one-time cookies that connections begin with. */
#ifndef TR_NET_COOKIE_H
#define TR_NET_COOKIE_H

#include <trireme/base.h>

#include <stddef.h>

enum { TR__COOKIE = 16, TR__COOKIE_TEXT = 2 * TR__COOKIE + 1 };

/* Random hexadecimal digits, bytes - 1 of them and a NUL. */
tr_status tr__random_text(char *text, size_t bytes);

#endif
