/* The struct of tr_tokenizer, and its two kinds. */
#ifndef TR_DATA_TEXT_TOKENIZER_H
#define TR_DATA_TEXT_TOKENIZER_H

#include "base/object.h"
#include "data/text/strings.h"
#include "data/text/unicode.h"

#include <trireme/data.h>

/* The token that two neighbours merge into; lower ranks first. */
typedef struct tr__merge {
    int32_t left, right, rank, token; /* left -1: a free slot */
} tr__merge;

/* Merges by their pairs; a power of two of slots. */
typedef struct tr__merges {
    tr__merge *slots;
    uint32_t slot_count;
    int count;
} tr__merges;

struct tr_tokenizer {
    tr__object object;
    enum { TR__BYTE_PAIR, TR__WORD_PIECE } kind;
    tr__strings tokens;  /* by id: of byte pairs their bytes, of word pieces with ## in front of those inside a word */
    int *special;        /* ids of the tokens that stand for no text but are named in it, "<|endoftext|>" */
    int special_count;

    tr__merges merges;
    int32_t of_byte[256]; /* the token of each byte, -1: none */
    bool space_before;    /* a text that does not begin with a space gets one */

    tr__cleaning cleaning;
    int unknown, begin, end; /* [UNK], [CLS], [SEP] */
};

enum { TR__TOKEN_MOST = 4096 }; /* bytes of a byte-pair token, and of any in a file */

/* "4096 tokens (CRC-32C 1a2b3c4d)": what tells a tokenizer from others. */
enum { TR__TOKENIZER_TEXT = 48 };
char *tr__tokenizer_text(const tr_tokenizer *tokenizer, char text[TR__TOKENIZER_TEXT]);

extern const tr__type tr__tokenizer_type;

/* A growing list of ids. */
typedef struct tr__token_ids {
    int32_t *at;
    size_t count, room;
} tr__token_ids;
tr_status tr__ids_reserve(tr__token_ids *ids, size_t more);

bool tr__tokenizer_is_special(const tr_tokenizer *tokenizer, int id);
/* Appends a text's tokens. plain: the names of special tokens are text like any other. */
tr_status tr__tokenizer_encode(const tr_tokenizer *tokenizer, const void *text, size_t bytes, bool plain, tr__token_ids *ids);

/* The next word of a text as GPT-2 cuts it, left > 0: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|
 * \s+(?!\S)|\s+ */
size_t tr__gpt2_word(const unsigned char *text, size_t left);
/* The character that stands for a byte in files of byte-pair tokens, and back (-1: it stands for none). */
uint32_t tr__byte_character(unsigned char byte);
int tr__character_byte(uint32_t character);

tr_status tr__merges_add(tr__merges *merges, int left, int right, int token);
const tr__merge *tr__merges_find(const tr__merges *merges, int left, int right); /* NULL: none */

/* Without special tokens. *encoder: what the pieces of a text between these share, NULL before the first one; to be freed. ids is
 * the same for all of them. */
typedef struct tr__pair_encoder tr__pair_encoder;
tr_status tr__byte_pair_encode(tr__pair_encoder **encoder, const tr_tokenizer *tokenizer, const unsigned char *text, size_t bytes,
    tr__token_ids *ids);
void tr__pair_encoder_free(tr__pair_encoder *encoder);
tr_status tr__word_piece_encode(const tr_tokenizer *tokenizer, const unsigned char *text, size_t bytes, tr__token_ids *ids);

/* Fills a tokenizer from a file or folder; in tokenizer_load.c. */
tr_status tr__tokenizer_load(tr_tokenizer *tokenizer, const tr_tokenizer_options *options);
/* Finds what encoding needs (of_byte, unknown, begin, end) once tokens and special are there. */
tr_status tr__tokenizer_finish(tr_tokenizer *tokenizer);
tr_status tr__tokenizer_add_special(tr_tokenizer *tokenizer, int id);

#endif
