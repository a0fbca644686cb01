#ifndef TR_TRAIN_JSON_STRING_H
#define TR_TRAIN_JSON_STRING_H

#include <stdio.h>

/* Writes text as JSON's: in quotes, with what must not stand there escaped. */
void tr__json_string(FILE *to, const char *text);

#endif
