/* Tokenizers as JSON. */
#ifndef TR_DATA_TEXT_TOKENIZER_JSON_H
#define TR_DATA_TEXT_TOKENIZER_JSON_H

#include "data/text/tokenizer.h"

#include <cjson/cJSON.h>

/* Fills a tokenizer from a whole tokenizer.json. */
tr_status tr__json_tokenizer(tr_tokenizer *tokenizer, const cJSON *json);
/* Fills it with byte-pair tokens {"token": id, …}; added: those of "added_tokens", or NULL. */
tr_status tr__json_byte_pairs(tr_tokenizer *tokenizer, const cJSON *vocab, const cJSON *added);
/* Adds the merge of two tokens, written as in such files. */
tr_status tr__json_merge(tr_tokenizer *tokenizer, const char *left, size_t left_bytes, const char *right,
    size_t right_bytes);

#endif
