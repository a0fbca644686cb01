/* Texts in JSON. */
#ifndef TR_BASE_JSON_STRING_H
#define TR_BASE_JSON_STRING_H

#include <stdio.h>
#include <string.h>

/* Writes bytes, which are UTF-8, as JSON's text: in quotes, with what must not stand there escaped. */
void tr__json_bytes(FILE *to, const void *bytes, size_t count);
static inline void tr__json_string(FILE *to, const char *text) { tr__json_bytes(to, text, strlen(text)); }

#endif
