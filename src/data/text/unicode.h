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

/* ---- The tables ---------------------------------------------------------------------------------------------------- */

typedef struct tr__unicode_range {
    uint32_t first, last;
} tr__unicode_range;
/* first, first + every, … last become themselves plus distance. */
typedef struct tr__lower {
    uint32_t first, last, every;
    int32_t distance;
} tr__lower;
/* Characters first to last without their accents: `length` others for each, 1 to 3, one behind the other in
 * tr__unicode_bare_texts from `at` on. */
typedef struct tr__bare {
    uint32_t first, last, length, at;
} tr__bare;

#define TR__UNICODE_RANGES(X) \
    X(letters) X(numbers) X(spaces) X(punctuation) X(removed) X(cleaned_to_space) X(accents)
#define TR__UNICODE_DECLARE(name) \
    extern const tr__unicode_range tr__unicode_##name[]; \
    extern const int tr__unicode_##name##_count;
TR__UNICODE_RANGES(TR__UNICODE_DECLARE)
#undef TR__UNICODE_DECLARE
extern const tr__lower tr__unicode_lower[];
extern const int tr__unicode_lower_count;
extern const tr__bare tr__unicode_bare[];
extern const int tr__unicode_bare_count;
extern const uint32_t tr__unicode_bare_texts[];

#endif
