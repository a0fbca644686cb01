/*
 * Byte-pair encoding as GPT-2 has it (Sennrich et al. 2016, Radford et al. 2019): a text is cut into words, a word is its
 * bytes, and of all neighbours the pair with the lowest rank becomes one token, until no pair has a rank.
 */
#include "data/text/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bytes as characters ------------------------------------------------------------------------------------------- */

/* Bytes that are printable in Latin-1 stand for themselves, the others for U+0100 and on, in order. */
static bool printable(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t tr__byte_character(unsigned char byte)
{
    if (printable(byte)) return byte;
    uint32_t before = 0;
    for (unsigned b = 0; b < byte; b++) before += !printable(b);
    return 0x100 + before;
}

int tr__character_byte(uint32_t c)
{
    if (c < 0x100) return printable(c) ? (int)c : -1;
    uint32_t before = 0;
    for (unsigned b = 0; b < 0x100; b++)
        if (!printable(b) && 0x100 + before++ == c) return (int)b;
    return -1;
}

/* ---- Words --------------------------------------------------------------------------------------------------------- */

enum { SPACE, LETTER, NUMBER, OTHER };

static int class_of(const unsigned char *text, size_t left, int *bytes)
{
    uint32_t c = tr__utf8_read(text, left, bytes);
    if (tr__is_letter(c)) return LETTER;
    if (tr__is_number(c)) return NUMBER;
    return tr__is_space(c) ? SPACE : OTHER;
}

/* What stays at the end of a word: 's, 't, 're, … 0: none is here. */
static size_t contraction(const unsigned char *text, size_t left)
{
    if (left < 2 || text[0] != '\'') return 0;
    if (strchr("stmd", text[1]) && text[1]) return 2;
    if (left < 3) return 0;
    bool two = (text[1] == 'r' && text[2] == 'e') || (text[1] == 'v' && text[2] == 'e') ||
               (text[1] == 'l' && text[2] == 'l');
    return two ? 3 : 0;
}

/* White space: all of it at the end of the text; before something else the last one is left to that, if there are two. */
static size_t spaces(const unsigned char *text, size_t left)
{
    size_t at = 0, before = 0;
    for (int bytes; at < left; at += (size_t)bytes) {
        if (class_of(text + at, left - at, &bytes) != SPACE) return before ? before : at;
        before = at;
    }
    return at;
}

size_t tr__gpt2_word(const unsigned char *text, size_t left)
{
    size_t length = contraction(text, left);
    if (length) return length;
    size_t at = text[0] == ' ' && left > 1;
    int bytes, class = class_of(text + at, left - at, &bytes);
    if (class == SPACE) return spaces(text, left);
    do at += (size_t)bytes;
    while (at < left && class_of(text + at, left - at, &bytes) == class);
    return at;
}

/* ---- Merges -------------------------------------------------------------------------------------------------------- */

static tr__merge *slot_of(const tr__merges *m, int left, int right)
{
    uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    uint32_t slot = (uint32_t)(hash >> 32) & (m->slot_count - 1);
    while (m->slots[slot].left >= 0 && (m->slots[slot].left != left || m->slots[slot].right != right))
        slot = (slot + 1) & (m->slot_count - 1);
    return &m->slots[slot];
}

const tr__merge *tr__merges_find(const tr__merges *m, int left, int right)
{
    if (!m->slot_count) return NULL;
    const tr__merge *merge = slot_of(m, left, right);
    return merge->left < 0 ? NULL : merge;
}

static tr_status widen(tr__merges *m)
{
    tr__merges wider = {.slot_count = m->slot_count ? 2 * m->slot_count : 256, .count = m->count};
    wider.slots = malloc(wider.slot_count * sizeof *wider.slots);
    if (!wider.slots) return tr__fail(TR_NO_MEMORY, "no memory for %d merges", m->count);
    memset(wider.slots, 0xff, wider.slot_count * sizeof *wider.slots);
    for (uint32_t i = 0; i < m->slot_count; i++)
        if (m->slots[i].left >= 0) *slot_of(&wider, m->slots[i].left, m->slots[i].right) = m->slots[i];
    free(m->slots);
    *m = wider;
    return TR_OK;
}

tr_status tr__merges_add(tr__merges *m, int left, int right, int token)
{
    if (2 * ((uint32_t)m->count + 1) > m->slot_count) TR__TRY(widen(m));
    tr__merge *slot = slot_of(m, left, right);
    if (slot->left >= 0) return tr__fail(TR_FORMAT, "merges %d and %d are of the same pair", slot->rank, m->count);
    *slot = (tr__merge){left, right, m->count++, token};
    return TR_OK;
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------ */

/* A part of a word: a token, and its neighbours, -1 at the ends. What a neighbour has swallowed has token -1. */
typedef struct part {
    int32_t token, before, after;
} part;

/* A pair that can be merged: of the part at `at` and the one after it. */
typedef struct candidate {
    int32_t rank, token, at;
} candidate;

enum { CACHE = 1 << 14 };

struct tr__pair_encoder {
    const tr_tokenizer *tokenizer;
    tr__token_ids *ids;
    part *parts;
    candidate *heap;
    int heap_count;
    size_t room;
    int64_t round; /* words of other rounds are gone */
    /* Words that came before, by hash: where they stand, and their tokens in ids. */
    struct { const unsigned char *text; size_t bytes, first, count; int64_t round; } cache[CACHE];
};
typedef tr__pair_encoder encoder;

static bool comes_before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(encoder *e, int32_t at)
{
    if (at < 0 || e->parts[at].after < 0) return;
    const tr__merge *merge =
        tr__merges_find(&e->tokenizer->merges, e->parts[at].token, e->parts[e->parts[at].after].token);
    if (!merge) return;
    candidate c = {merge->rank, merge->token, at};
    int i = e->heap_count++;
    for (; i > 0 && comes_before(&c, &e->heap[(i - 1) / 2]); i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = c;
}

static candidate pop(encoder *e)
{
    candidate top = e->heap[0], last = e->heap[--e->heap_count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < e->heap_count; i = child) {
        if (child + 1 < e->heap_count && comes_before(&e->heap[child + 1], &e->heap[child])) child++;
        if (!comes_before(&e->heap[child], &last)) break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = last;
    return top;
}

/* Each merge takes one candidate out and puts two in, so there are never more than three for a part. */
static tr_status reserve(encoder *e, size_t count)
{
    if (count > INT_MAX / 4) return tr__fail(TR_INVALID, "tokenizer: a word of %zu bytes is too long", count);
    if (e->parts && count <= e->room) return TR_OK;
    free(e->parts);
    free(e->heap);
    e->room = count;
    e->parts = malloc(count * sizeof *e->parts);
    e->heap = malloc(3 * count * sizeof *e->heap);
    if (e->parts && e->heap) return TR_OK;
    e->room = 0;
    return tr__fail(TR_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", count);
}

static void merge_parts(encoder *e)
{
    while (e->heap_count) {
        candidate c = pop(e);
        part *left = &e->parts[c.at];
        if (left->token < 0 || left->after < 0) continue;
        part *right = &e->parts[left->after];
        const tr__merge *merge = tr__merges_find(&e->tokenizer->merges, left->token, right->token);
        if (!merge || merge->token != c.token) continue; /* other neighbours by now */
        left->token = c.token;
        left->after = right->after;
        right->token = -1;
        if (left->after >= 0) e->parts[left->after].before = c.at;
        push(e, left->before);
        push(e, c.at);
    }
}

static tr_status encode_word(encoder *e, const unsigned char *word, size_t bytes)
{
    if (!bytes) return TR_OK;
    TR__TRY(reserve(e, bytes));
    e->heap_count = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t at = (int32_t)i;
        e->parts[i] = (part){e->tokenizer->of_byte[word[i]], at - 1, i + 1 < bytes ? at + 1 : -1};
        if (e->parts[i].token < 0)
            return tr__fail(TR_INVALID, "tokenizer: its vocabulary has no token for the byte 0x%02x", word[i]);
    }
    for (size_t i = 0; i < bytes; i++) push(e, (int32_t)i);
    merge_parts(e);
    TR__TRY(tr__ids_reserve(e->ids, bytes));
    for (int32_t i = 0; i >= 0; i = e->parts[i].after) e->ids->at[e->ids->count++] = e->parts[i].token;
    return TR_OK;
}

static tr_status encode_or_copy(encoder *e, const unsigned char *word, size_t bytes)
{
    size_t slot = tr__hash_bytes(word, bytes) % CACHE, first = e->ids->count;
    bool same = e->cache[slot].bytes == bytes && e->cache[slot].round == e->round && memcmp(e->cache[slot].text, word, bytes) == 0;
    if (same) {
        size_t count = e->cache[slot].count;
        TR__TRY(tr__ids_reserve(e->ids, count));
        memcpy(e->ids->at + first, e->ids->at + e->cache[slot].first, count * sizeof *e->ids->at);
        e->ids->count += count;
        return TR_OK;
    }
    TR__TRY(encode_word(e, word, bytes));
    e->cache[slot].text = word;
    e->cache[slot].round = e->round;
    e->cache[slot].bytes = bytes;
    e->cache[slot].first = first;
    e->cache[slot].count = e->ids->count - first;
    return TR_OK;
}

static tr_status encode_words(encoder *e, const unsigned char *text, size_t bytes)
{
    tr_status status = TR_OK;
    for (size_t at = 0, length; at < bytes && status == TR_OK; at += length) {
        length = tr__gpt2_word(text + at, bytes - at);
        status = encode_or_copy(e, text + at, length);
    }
    return status;
}

tr_status tr__byte_pair_encode(encoder **held, const tr_tokenizer *t, const unsigned char *text, size_t bytes, tr__token_ids *ids)
{
    if (!*held) *held = calloc(1, sizeof **held);
    encoder *e = *held;
    if (!e) return tr__fail(TR_NO_MEMORY, "tokenizer: out of memory");
    e->tokenizer = t;
    e->ids = ids;
    if (!t->space_before || !bytes || text[0] == ' ') return encode_words(e, text, bytes);
    unsigned char *spaced = malloc(bytes + 1);
    if (!spaced) return tr__fail(TR_NO_MEMORY, "tokenizer: no memory for a text of %zu bytes", bytes);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, bytes);
    tr_status status = encode_words(e, spaced, bytes + 1);
    free(spaced);
    e->round++;
    return status;
}

void tr__pair_encoder_free(encoder *e)
{
    if (!e) return;
    free(e->parts);
    free(e->heap);
    free(e);
}
