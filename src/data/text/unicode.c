#include "data/text/unicode.h"

#include <string.h>

/* ---- UTF-8 --------------------------------------------------------------------------------------------------------- */

uint32_t tr__utf8_read(const unsigned char *s, size_t left, int *bytes)
{
    /* The least character of each length: overlong forms are invalid. */
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    *bytes = 1;
    if (*s < 0x80) return *s;
    int n = *s >= 0xf0 ? 4 : *s >= 0xe0 ? 3 : 2;
    if (*s < 0xc2 || *s > 0xf4 || left < (size_t)n) return TR__NOT_UTF8;
    uint32_t c = *s & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return TR__NOT_UTF8;
        c = c << 6 | (s[i] & 0x3fu);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return TR__NOT_UTF8;
    *bytes = n;
    return c;
}

int64_t tr__first_not_utf8(const void *text, size_t count)
{
    int bytes;
    for (size_t at = 0; at < count; at += (size_t)bytes) {
        uint32_t c = tr__utf8_read((const unsigned char *)text + at, count - at, &bytes);
        if (c == TR__NOT_UTF8 && bytes == 1) return (int64_t)at;
    }
    return -1;
}

bool tr__is_utf8(const void *text, size_t count)
{
    return tr__first_not_utf8(text, count) < 0;
}

int tr__utf8_write(uint32_t c, unsigned char to[4])
{
    if (c < 0x80) {
        to[0] = (unsigned char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) to[i] = (unsigned char)(0x80 | (c & 0x3f));
    to[0] = (unsigned char)(0xf00u >> n | c);
    return n;
}

/* ---- Classes ------------------------------------------------------------------------------------------------------- */

/* Rows of the tables begin with the characters that they are of. */
typedef struct range {
    uint32_t first, last;
} range, letters_row, numbers_row, spaces_row, punctuation_row, removed_row, cleaned_to_space_row, accents_row;
/* first, first + every, … last become themselves plus distance. */
typedef struct lower_row {
    uint32_t first, last, every;
    int32_t distance;
} lower_row;
/* Characters first to last without their accents: `length` others for each, 1 to 3, one behind the other from row `at` on. */
typedef struct bare_row {
    uint32_t first, last, length, at;
} bare_row;
typedef struct bare_texts_row {
    uint32_t character;
} bare_texts_row;
#include "data/text/unicode_tables.h"

/* Of `count` rows, in rising order, the one whose range has c; NULL: none. */
static const void *find_row(const void *rows, size_t row_bytes, size_t count, uint32_t c)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const range *row = (const void *)((const char *)rows + middle * row_bytes);
        if (row->last < c) low = middle + 1;
        else if (row->first > c) high = middle;
        else return row;
    }
    return NULL;
}
#define FIND_IN(rows, c) find_row(rows, sizeof *(rows), sizeof(rows) / sizeof *(rows), (c))
#define FIND(name, c) FIND_IN(name##_table, c)

bool tr__is_letter(uint32_t c)
{
    if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    return FIND(letters, c);
}

bool tr__is_number(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    return FIND(numbers, c);
}

bool tr__is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return FIND(spaces, c);
}

bool tr__is_punctuation(uint32_t c)
{
    return FIND(punctuation, c);
}

/* ---- Cleaning ------------------------------------------------------------------------------------------------------ */

/* What BERT takes for Chinese: the blocks of ideographs. */
static bool is_ideograph(uint32_t c)
{
    static const range blocks[] = {{0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xf900, 0xfaff}, {0x20000, 0x2a6df},
        {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    return FIND_IN(blocks, c);
}

/* Hangul syllables are their two or three parts (Unicode, section 3.12). */
static int hangul(uint32_t c, uint32_t to[3])
{
    uint32_t syllable = c - 0xac00, tail = syllable % 28;
    to[0] = 0x1100 + syllable / 588;
    to[1] = 0x1161 + syllable % 588 / 28;
    to[2] = 0x11a7 + tail;
    return tail ? 3 : 2;
}

static int without_accents(uint32_t c, uint32_t to[3])
{
    to[0] = c;
    if (c < 0x80) return 1;
    if (c >= 0xac00 && c <= 0xd7a3) return hangul(c, to);
    if (FIND(accents, c)) return 0;
    const bare_row *row = FIND(bare, c);
    if (!row) return 1;
    memcpy(to, bare_texts_table + row->at + (c - row->first) * row->length, row->length * sizeof *to);
    return (int)row->length;
}

static uint32_t lower(uint32_t c)
{
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    const lower_row *row = FIND(lower, c);
    return row && (c - row->first) % row->every == 0 ? (uint32_t)((int32_t)c + row->distance) : c;
}

int tr__clean(const tr__cleaning *how, uint32_t c, uint32_t to[TR__CLEANED_MOST])
{
    if (FIND(removed, c)) return 0;
    if (FIND(cleaned_to_space, c)) c = ' ';
    bool spaced = how->spaced_ideographs && is_ideograph(c);
    int n = 0, last;
    if (spaced) to[n++] = ' ';
    if (how->without_accents)
        n += without_accents(c, to + n);
    else
        to[n++] = c;
    last = n;
    for (int i = 0; how->lower && i < last; i++) {
        if (to[i] == 0x130) to[n++] = 0x307; /* the one character whose small form is two; nothing follows it here */
        to[i] = to[i] == 0x130 ? 'i' : lower(to[i]);
    }
    if (spaced) to[n++] = ' ';
    return n;
}
