/*
 * WordPiece as BERT has it (Devlin et al. 2019): the text is cleaned and cut at spaces and around punctuation; of each word
 * the longest token that it begins with is taken, then the longest "##" one of the rest, and so on. A word that does not
 * come out even is [UNK].
 */
#include "data/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST = 100 }; /* characters of a word; a longer one is [UNK] */

typedef struct word {
    unsigned char bytes[2 + 4 * LONGEST]; /* the word from 2 on: there is room for ## in front */
    size_t count;                         /* of its bytes */
    int characters;
} word;

/* The longest token that the word has at `at`; its end in *end. -1: none. */
static int longest(const tr_tokenizer *t, word *w, size_t at, size_t *end)
{
    unsigned char *begin = w->bytes + at, kept[2]; /* where ## stands, when it is one inside a word */
    size_t prefix = at ? 2 : 0;
    memcpy(kept, begin, 2);
    if (prefix) begin[0] = begin[1] = '#';
    int id = -1;
    for (*end = w->count; *end > at && id < 0;) {
        id = tr__strings_find(&t->tokens, begin + 2 - prefix, *end - at + prefix);
        if (id >= 0) break;
        do --*end;
        while (*end > at && (w->bytes[2 + *end] & 0xc0) == 0x80); /* not within a character */
    }
    memcpy(begin, kept, 2);
    return id;
}

static tr_status finish(const tr_tokenizer *t, word *w, tr__token_ids *ids)
{
    size_t before = ids->count;
    TR__TRY(tr__ids_reserve(ids, w->count + 1));
    bool known = w->characters <= LONGEST;
    for (size_t at = 0, end; known && at < w->count; at = end) {
        int id = longest(t, w, at, &end);
        known = id >= 0;
        ids->at[ids->count++] = id;
    }
    if (!known) {
        ids->count = before;
        ids->at[ids->count++] = t->unknown;
    }
    w->count = 0;
    w->characters = 0;
    return TR_OK;
}

static tr_status take(const tr_tokenizer *t, word *w, uint32_t c, tr__token_ids *ids)
{
    bool alone = tr__is_punctuation(c);
    if ((c == ' ' || alone) && w->characters) TR__TRY(finish(t, w, ids));
    if (c == ' ') return TR_OK;
    if (w->characters < LONGEST) w->count += (size_t)tr__utf8_write(c, w->bytes + 2 + w->count);
    w->characters += w->characters <= LONGEST;
    return alone ? finish(t, w, ids) : TR_OK;
}

tr_status tr__word_piece_encode(const tr_tokenizer *t, const unsigned char *text, size_t bytes, tr__token_ids *ids)
{
    word w = {.count = 0};
    int length;
    for (size_t at = 0; at < bytes; at += (size_t)length) {
        uint32_t cleaned[TR__CLEANED_MOST];
        int n = tr__clean(&t->cleaning, tr__utf8_read(text + at, bytes - at, &length), cleaned);
        for (int i = 0; i < n; i++) TR__TRY(take(t, &w, cleaned[i], ids));
    }
    return w.characters ? finish(t, &w, ids) : TR_OK;
}
