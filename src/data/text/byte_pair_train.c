/*
 * Byte-pair vocabularies from a text of one's own (Sennrich et al. 2016): its words are bytes at first, and the pair of
 * neighbours that stands most often becomes a token, again and again. Of pairs that stand equally often, that of the
 * smallest ids is first. As each merge changes few words, each pair knows in which it stands.
 */
#include "base/given.h"
#include "base/memory.h"
#include "data/text/text.h"
#include "data/text/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct word {
    int64_t count; /* how often it stands in the text */
    size_t begin;  /* of its tokens in learner.tokens, */
    int length;    /* which become fewer */
} word;

typedef struct pair {
    int32_t left, right;
    int64_t count;
    int32_t places; /* the first of a list in learner.places, -1: none */
} pair;

/* One word in which a pair stands, or has stood. */
typedef struct place {
    int32_t word, next;
} place;

/* In a heap; the count may have become less since. */
typedef struct entry {
    int64_t count;
    int32_t pair;
} entry;

typedef struct learner {
    tr_tokenizer *tokenizer;
    tr__strings strings; /* the distinct words */
    word *words;
    size_t word_room;
    int32_t *tokens;
    tr__merges pair_at;  /* a pair's number, as the token of a merge */
    pair *pairs;
    int pair_count;
    size_t pair_room;
    place *places;
    int place_count;
    size_t place_room;
    entry *heap;
    int heap_count;
    size_t heap_room;
} learner;

/* Makes room for one more element of a growing array, of which there are `count`. */
static tr_status grow(void *array, int count, size_t *room, size_t size)
{
    bool grown = count < INT_MAX && tr__grow(array, (size_t)count, room, size);
    return grown ? TR_OK : tr__fail(TR_NO_MEMORY, "no memory for more than %d entries", count);
}

/* ---- Words ---------------------------------------------------------------------------------------------------------- */

static tr_status count_words(learner *l, const unsigned char *text, size_t bytes)
{
    for (size_t at = 0, length; at < bytes; at += length) {
        int number;
        bool fresh;
        length = tr__gpt2_word(text + at, bytes - at);
        TR__TRY(tr__strings_add(&l->strings, text + at, length, &number, &fresh));
        TR__TRY(grow(&l->words, number, &l->word_room, sizeof *l->words));
        if (fresh) l->words[number] = (word){.begin = l->strings.used - length, .length = (int)length};
        l->words[number].count++;
    }
    l->tokens = malloc((l->strings.used + 1) * sizeof *l->tokens);
    if (!l->tokens) return tr__fail(TR_NO_MEMORY, "no memory for %d words", l->strings.count);
    for (size_t i = 0; i < l->strings.used; i++) l->tokens[i] = l->tokenizer->of_byte[l->strings.bytes[i]];
    return TR_OK;
}

/* ---- Pairs ---------------------------------------------------------------------------------------------------------- */

static bool comes_before(const learner *l, const entry *a, const entry *b)
{
    const pair *x = &l->pairs[a->pair], *y = &l->pairs[b->pair];
    if (a->count != b->count) return a->count > b->count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static tr_status push(learner *l, int32_t number)
{
    TR__TRY(grow(&l->heap, l->heap_count, &l->heap_room, sizeof *l->heap));
    entry e = {l->pairs[number].count, number};
    int i = l->heap_count++;
    for (; i > 0 && comes_before(l, &e, &l->heap[(i - 1) / 2]); i = (i - 1) / 2) l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = e;
    return TR_OK;
}

static entry pop(learner *l)
{
    entry top = l->heap[0], last = l->heap[--l->heap_count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < l->heap_count; i = child) {
        if (child + 1 < l->heap_count && comes_before(l, &l->heap[child + 1], &l->heap[child])) child++;
        if (!comes_before(l, &l->heap[child], &last)) break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = last;
    return top;
}

static tr_status find_or_add(learner *l, int32_t left, int32_t right, int32_t *number)
{
    const tr__merge *known = tr__merges_find(&l->pair_at, left, right);
    *number = known ? known->token : l->pair_count;
    if (known) return TR_OK;
    TR__TRY(grow(&l->pairs, l->pair_count, &l->pair_room, sizeof *l->pairs));
    TR__TRY(tr__merges_add(&l->pair_at, left, right, l->pair_count));
    l->pairs[l->pair_count++] = (pair){.left = left, .right = right, .places = -1};
    return TR_OK;
}

/* The pair stands once more (by 1) or less (by -1) in a word. */
static tr_status change(learner *l, int32_t left, int32_t right, int32_t in, int by)
{
    int32_t number;
    TR__TRY(find_or_add(l, left, right, &number));
    pair *p = &l->pairs[number];
    p->count += by * l->words[in].count;
    if (by < 0 || (p->places >= 0 && l->places[p->places].word == in)) return TR_OK;
    TR__TRY(grow(&l->places, l->place_count, &l->place_room, sizeof *l->places));
    l->places[l->place_count] = (place){in, p->places};
    p->places = l->place_count++;
    return TR_OK;
}

static tr_status count_pairs(learner *l)
{
    for (int32_t i = 0; i < l->strings.count; i++) {
        const int32_t *token = l->tokens + l->words[i].begin;
        for (int k = 0; k + 1 < l->words[i].length; k++) TR__TRY(change(l, token[k], token[k + 1], i, 1));
    }
    for (int32_t i = 0; i < l->pair_count; i++) TR__TRY(push(l, i));
    return TR_OK;
}

/* ---- Merging -------------------------------------------------------------------------------------------------------- */

static tr_status merge_in_word(learner *l, int32_t in, int32_t left, int32_t right, int32_t merged)
{
    word *w = &l->words[in];
    int32_t *token = l->tokens + w->begin;
    int to = 0;
    for (int from = 0; from < w->length; to++) {
        bool here = token[from] == left && from + 1 < w->length && token[from + 1] == right;
        if (here && to > 0) {
            TR__TRY(change(l, token[to - 1], left, in, -1));
            TR__TRY(change(l, token[to - 1], merged, in, 1));
        }
        if (here && from + 2 < w->length) {
            TR__TRY(change(l, right, token[from + 2], in, -1));
            TR__TRY(change(l, merged, token[from + 2], in, 1));
        }
        token[to] = here ? merged : token[from];
        from += here ? 2 : 1;
    }
    w->length = to;
    return TR_OK;
}

/* The token that a pair becomes: its bytes may be those of one that is there. */
static tr_status join(tr_tokenizer *t, int32_t left, int32_t right, int *merged)
{
    size_t first, second;
    const unsigned char *a = tr__strings_at(&t->tokens, left, &first), *b = tr__strings_at(&t->tokens, right, &second);
    unsigned char *both = malloc(first + second);
    if (!both) return tr__fail(TR_NO_MEMORY, "out of memory");
    memcpy(both, a, first);
    memcpy(both + first, b, second);
    tr_status status = tr__strings_add(&t->tokens, both, first + second, merged, NULL);
    free(both);
    TR__TRY(status);
    return tr__merges_find(&t->merges, left, right) ? TR_OK : tr__merges_add(&t->merges, left, right, *merged);
}

static bool is_too_long(const learner *l, const pair *p)
{
    size_t first, second;
    (void)tr__strings_at(&l->tokenizer->tokens, p->left, &first);
    (void)tr__strings_at(&l->tokenizer->tokens, p->right, &second);
    return first + second > TR__TOKEN_MOST;
}

static tr_status merge(learner *l, int32_t number)
{
    pair p = l->pairs[number];
    int merged, first_new = l->pair_count;
    TR__TRY(join(l->tokenizer, p.left, p.right, &merged));
    l->pairs[number].places = -1;
    for (int32_t at = p.places; at >= 0; at = l->places[at].next)
        TR__TRY(merge_in_word(l, l->places[at].word, p.left, p.right, merged));
    l->pairs[number].count = 0;
    for (int32_t i = first_new; i < l->pair_count; i++) TR__TRY(push(l, i));
    return TR_OK;
}

static tr_status learn(learner *l, const tr_text *text, int vocab, int64_t least)
{
    TR__TRY(count_words(l, text->bytes, (size_t)text->training));
    TR__TRY(count_pairs(l));
    while (l->tokenizer->tokens.count < vocab && l->heap_count) {
        entry top = pop(l);
        int64_t count = l->pairs[top.pair].count;
        if (count < least && top.count == count) break;
        if (top.count != count)
            TR__TRY(push(l, top.pair));
        else if (!is_too_long(l, &l->pairs[top.pair]))
            TR__TRY(merge(l, top.pair));
    }
    return TR_OK;
}

/* ---- A tokenizer ---------------------------------------------------------------------------------------------------- */

/* All bytes, in the order of the characters that stand for them, as GPT-2 has them. */
static tr_status add_bytes(tr_tokenizer *t)
{
    for (uint32_t c = 0; c < 0x200; c++) {
        int byte = tr__character_byte(c), id;
        if (byte >= 0) TR__TRY(tr__strings_add(&t->tokens, (unsigned char[]){(unsigned char)byte}, 1, &id, NULL));
    }
    return tr__tokenizer_finish(t);
}

static tr_status train(tr_tokenizer *t, const tr_tokenizer_train_options *o)
{
    static const char end_of_text[] = "<|endoftext|>";
    int vocab = TR__OR(o, vocab, 4096), least = TR__OR(o, least, 2), id;
    TR__TRY(tr_status_of(o->text));
    if (!o->text) return tr__fail(TR_INVALID, "the text is NULL");
    if (vocab < 257 || least < 1)
        return tr__fail(TR_INVALID, "a vocabulary has the 256 bytes and %s, so at least 257 tokens, not %d, "
            "of pairs that stand at least once, not %d times", end_of_text, vocab, least);
    if (o->text->tokens)
        return tr__fail(TR_INVALID, "the text is in tokens of another tokenizer: make one of bytes");
    learner l = {.tokenizer = t};
    tr_status status = add_bytes(t);
    if (status == TR_OK) status = learn(&l, o->text, vocab - 1, least);
    if (status == TR_OK) status = tr__strings_add(&t->tokens, end_of_text, sizeof end_of_text - 1, &id, NULL);
    if (status == TR_OK) status = tr__tokenizer_add_special(t, id);
    tr__strings_free(&l.strings);
    free(l.words);
    free(l.tokens);
    free(l.pair_at.slots);
    free(l.pairs);
    free(l.places);
    free(l.heap);
    return status == TR_OK ? TR_OK : tr__fail_context(status, "tokenizer_train");
}

tr_tokenizer *tr_tokenizer_train_with(const tr_tokenizer_train_options *options)
{
    tr_tokenizer *t = tr__object_new(&tr__tokenizer_type);
    if (tr_status_of(t) != TR_OK) return t;
    if (train(t, options) != TR_OK) tr__object_break(t);
    return t;
}
