/* trireme tokenizer: learns a vocabulary, and shows how a text is cut. */
#include "command.h"
#include "options.h"

#include <trireme/trireme.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TRAIN "tokenizer train"
#define ENCODE "tokenizer encode"

static int train(int argc, char **argv)
{
    TR_SCOPE;
    const char *data = NULL, *suffixes = NULL, *out = "tokenizer.json";
    int vocab = 4096, least = 2;
    const tr__option options[] = {
        {"data", 0, "PATH", "the text: a file, or a folder of text files", TR__TEXT(&data), .required = true},
        {"suffixes", 0, "LIST", "of a folder only files whose names end so: \".c .h\"", TR__TEXT(&suffixes)},
        {"vocab", 0, "N", "tokens: 256 bytes, merges, and <|endoftext|>", TR__INTEGER(&vocab, 257, 10000000)},
        {"least", 0, "N", "how often a pair must stand to become a token", TR__INTEGER(&least, 1, INT_MAX)},
        {"out", 'o', "FILE", "where it is written", TR__TEXT(&out)},
        {0},
    };
    const tr__syntax syntax = {TRAIN, NULL,
        "Learns a byte-pair vocabulary from a text, for `trireme train … --tokenizer FILE` and for Hugging Face's\n"
        "tokenizers. docs/data.md says more.",
        options, .operands = {0, 0}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code >= 0) return code;
    tr_text *text = tr_text_load(data, .suffixes = suffixes, .validation = 0);
    tr_tokenizer *t = tr_tokenizer_train(text, .vocab = vocab, .least = least);
    if (tr_status_of(t) != TR_OK || tr_tokenizer_save(t, out) != TR_OK) return tr__failed(TRAIN);
    printf("%d tokens in %s", tr_tokenizer_vocab(t), out);
    struct stat s;
    if (stat(data, &s) == 0 && !S_ISFIFO(s.st_mode)) { /* a pipe is not read again */
        tr_text *tokens = tr_text_load(data, .suffixes = suffixes, .validation = 0, .tokenizer = t);
        if (tr_status_of(tokens) != TR_OK) return tr__failed(TRAIN);
        double bytes = (double)tr_text_bytes(text, false), count = (double)tr_text_tokens(tokens, false);
        printf(": %s is %.0f of them, one for %.2f bytes", data, count, bytes / count);
    }
    putchar('\n');
    return tr__printed(TRAIN);
}

/* A token as text in quotes would have it: what does not print is \xNN. */
static void print_token(const tr_tokenizer *t, int id)
{
    size_t bytes;
    const char *token = tr_tokenizer_token(t, id, &bytes);
    printf("%7d  ", id);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)token[i];
        if (c >= ' ' && c != 127 && c < 0x80)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    putchar('\n');
}

static int encode(int argc, char **argv)
{
    TR_SCOPE;
    const char *path = NULL;
    const tr__option options[] = {
        {"tokenizer", 0, "PATH", "a tokenizer.json, vocab.json or vocab.txt, or a folder with one", TR__TEXT(&path),
            .required = true},
        {0},
    };
    const tr__syntax syntax = {ENCODE, "TEXT", "Prints the tokens of a text, an id and what it stands for in each line.",
        options, .operands = {1, 1}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code >= 0) return code;
    tr_tokenizer *t = tr_tokenizer_load(path);
    tr_tensor *ids = tr_encode(t, argv[0]);
    if (tr_status_of(ids) != TR_OK) return tr__failed(ENCODE);
    for (int64_t i = 0; i < tr_numel(ids); i++) print_token(t, ((const int32_t *)tr_data(ids))[i]);
    return tr__printed(ENCODE);
}

int tr__cli_tokenizer(int argc, char **argv)
{
    static const tr__subcommand commands[] = {
        {"train", train, "learn a byte-pair vocabulary from a text"},
        {"encode", encode, "print the tokens of a text"},
        {0},
    };
    return tr__run_subcommand("tokenizer", "Cuts texts into tokens.", commands, argc, argv);
}
