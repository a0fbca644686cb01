/* UTF-8, and what tokenizers ask about characters: which are letters, numbers, spaces, punctuation, accents. */
#ifndef TR_DATA_TEXT_UNICODE_H
#define TR_DATA_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TR__NOT_UTF8 = 0xfffd }; /* stands for an invalid byte */

/* The character at text, of left > 0 bytes; *bytes: its length, 1 for an invalid byte. */
uint32_t tr__utf8_read(const unsigned char *text, size_t left, int *bytes);
bool tr__is_utf8(const void *text, size_t bytes);
/* The offset of the first byte that is not UTF-8; -1: all is. */
int64_t tr__first_not_utf8(const void *text, size_t bytes);
/* Writes it, and returns the number of bytes, 1 to 4. */
int tr__utf8_write(uint32_t character, unsigned char to[4]);

bool tr__is_letter(uint32_t character);
bool tr__is_number(uint32_t character);
bool tr__is_space(uint32_t character);
bool tr__is_punctuation(uint32_t character); /* BERT's, with all of ASCII's signs */

typedef struct tr__cleaning {
    bool spaced_ideographs; /* spaces around each */
    bool without_accents;
    bool lower;
} tr__cleaning;
enum { TR__CLEANED_MOST = 5 };
/* What BERT's cleaning makes of a character: 0 to 5 others. Control characters go, white space becomes spaces. */
int tr__clean(const tr__cleaning *how, uint32_t character, uint32_t to[TR__CLEANED_MOST]);

#endif
