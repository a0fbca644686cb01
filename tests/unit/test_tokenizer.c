/*
 * Tokenizers: the same tokens as Hugging Face's for the texts in tests/recorded/tokenizers.safetensors
 * (record_tokenizers.py says how they were made), the same vocabulary from the same text, and what cannot be read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "files.h"
#include "recorded.h"

#include <trireme/trireme.h>

static const char *recorded_path(const char *name)
{
    static char path[4096];
    const char *source = getenv("SOURCE");
    snprintf(path, sizeof path, "%s/tests/recorded/tokenizers/%s", source ? source : ".", name);
    return path;
}

static tr_tokenizer *load(const char *name)
{
    tr_tokenizer *t = tr_tokenizer_load(recorded_path(name));
    TR_CHECK(tr_status_of(t));
    return t;
}

static const char *text_of(const tr_tensor_list *file, const char *format, ...)
{
    char key[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    return tr_list_metadata(file, key);
}

static void assert_ids(const tr_tensor *got, const tr_tensor *expected, const char *kind, int number)
{
    TR_CHECK(tr_status_of(got));
    const int32_t *ids = tr_data(got);
    const int64_t *want = tr_data(expected);
    for (int64_t i = 0; i < tr_numel(got) && i < tr_numel(expected); i++)
        if (ids[i] != want[i])
            fail_msg("%s, text %d: token %d is %d, not %d", kind, number, (int)i, (int)ids[i], (int)want[i]);
    if (tr_numel(got) != tr_numel(expected))
        fail_msg("%s, text %d: %d tokens, not %d", kind, number, (int)tr_numel(got), (int)tr_numel(expected));
}

static void assert_decoded(const tr_tokenizer *t, const tr_tensor *ids, const char *expected)
{
    char text[8192];
    size_t length;
    TR_CHECK(tr_decode(t, ids, .text = text, .bytes = sizeof text, .length = &length));
    assert_string_equal(text, expected);
    assert_int_equal(length, strlen(expected));
}

static void compare(const char *kind, const char *path, bool decodes)
{
    tr_tensor_list *file = recorded("tokenizers");
    tr_tokenizer *t = load(path);
    int number = 0;
    for (const char *text; (text = text_of(file, "text.%d", number)); number++) {
        tr_tensor *ids = tr_encode(t, text), *expected = recorded_find(file, "%s.%d", kind, number);
        assert_ids(ids, expected, kind, number);
        if (!decodes) continue;
        assert_decoded(t, ids, text_of(file, "%s.decoded.%d", kind, number));
        assert_decoded(t, expected, text_of(file, "%s.decoded.%d", kind, number)); /* i64 */
    }
    assert_true(number >= 24);
}

static void test_byte_pairs(void **state)
{
    (void)state;
    TR_SCOPE;
    compare("gpt2", "gpt2.json", true);
}

static void test_word_pieces(void **state)
{
    (void)state;
    TR_SCOPE;
    compare("bert", "bert.json", true);
    compare("bert", "bert", true);
    compare("bert", "bert/vocab.txt", false);
    compare("cased", "cased", true);
}

/* A folder of vocab.json and merges.txt is gpt2.json without its special token. */
static void test_two_files(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("tokenizers");
    tr_tokenizer *folder = load("gpt2"), *files = load("gpt2/vocab.json"), *json = load("gpt2.json");
    assert_int_equal(tr_tokenizer_vocab(folder), 700);
    assert_int_equal(tr_tokenizer_vocab(json), 701);
    for (int i = 0; text_of(file, "text.%d", i); i++) {
        const char *text = text_of(file, "text.%d", i);
        tr_tensor *a = tr_encode(folder, text), *b = tr_encode(files, text), *c = tr_encode(json, text, .plain = true);
        assert_int_equal(tr_numel(a), tr_numel(c));
        assert_memory_equal(tr_data(a), tr_data(b), (size_t)tr_numel(a) * 4);
        assert_memory_equal(tr_data(a), tr_data(c), (size_t)tr_numel(a) * 4);
    }
}

static void test_pairs(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("tokenizers");
    tr_tokenizer *t = load("bert.json");
    tr_tensor *types;
    tr_tensor *ids = tr_encode(t, text_of(file, "text.1"), .pair = text_of(file, "text.2"), .types = &types);
    assert_ids(ids, recorded_find(file, "bert.pair.ids"), "pair", 1);
    assert_ids(types, recorded_find(file, "bert.pair.types"), "types", 1);
    tr_tensor *bare = tr_encode(t, text_of(file, "text.1"), .bare = true), *whole = tr_encode(t, text_of(file, "text.1"));
    assert_int_equal(tr_numel(bare) + 2, tr_numel(whole));
    assert_memory_equal(tr_data(bare), (int32_t *)tr_data(whole) + 1, (size_t)tr_numel(bare) * 4);
}

static void test_special(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tokenizer *t = load("gpt2.json");
    int end = tr_tokenizer_id(t, "<|endoftext|>");
    assert_int_equal(end, 700);
    assert_int_equal(tr_tokenizer_id(t, NULL), -1);
    assert_memory_equal(tr_tokenizer_token(t, end, NULL), "<|endoftext|>", 13);
    tr_tensor *ids = tr_encode(t, "a<|endoftext|>b");
    assert_int_equal(tr_numel(ids), 3);
    assert_int_equal(((int32_t *)tr_data(ids))[1], end);
    char text[64];
    TR_CHECK(tr_decode(t, ids, .text = text, .bytes = sizeof text));
    assert_string_equal(text, "ab");
    TR_CHECK(tr_decode(t, ids, .text = text, .bytes = sizeof text, .special = true));
    assert_string_equal(text, "a<|endoftext|>b");
    tr_tensor *plain = tr_encode(t, "a<|endoftext|>b", .plain = true);
    assert_true(tr_numel(plain) > 3);
    TR_CHECK(tr_decode(t, plain, .text = text, .bytes = sizeof text));
    assert_string_equal(text, "a<|endoftext|>b");

    size_t bytes;
    assert_int_equal(tr_tokenizer_id(t, "no such token"), -1);
    const char *token = tr_tokenizer_token(t, tr_tokenizer_id(t, " the"), &bytes);
    assert_int_equal(bytes, 4);
    assert_memory_equal(token, " the", 4);
    assert_null(tr_tokenizer_token(t, 701, &bytes));
    assert_null(tr_tokenizer_token(t, -1, &bytes));
}

/* The saved tokenizer, which puts a space before a text from now on. */
static tr_tokenizer *with_a_space_before(const tr_tokenizer *t)
{
    static char text[1 << 20];
    TR_CHECK(tr_tokenizer_save(t, files_path("space.json")));
    FILE *f = fopen(files_path("space.json"), "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    char *place = strstr(text, "\"ByteLevel\", \"add_prefix_space\": false");
    assert_non_null(place);
    memcpy(strstr(place, "false"), "true ", 5);
    return tr_tokenizer_load(files_write("space.json", text, strlen(text)));
}

/* Words that come again behind a special token have the tokens that they have alone, also those that get a space. */
static void test_texts_between_special_tokens(void **state)
{
    (void)state;
    TR_SCOPE;
    static const char *const texts[] = {"the license of the license", "the license", "license the license", " of the license",
        "the"};
    char all[512] = "";
    for (int i = 0; i < 5; i++) snprintf(all + strlen(all), sizeof all - strlen(all), "%s<|endoftext|>", texts[i]);
    tr_tokenizer *t = load("gpt2.json"), *spaced = with_a_space_before(t);
    TR_CHECK(tr_status_of(spaced));
    assert_true(tr_numel(tr_encode(spaced, "the")) == 1 && tr_item(tr_encode(spaced, "the")) == tr_tokenizer_id(t, " the"));
    for (int k = 0; k < 2; k++) {
        const tr_tensor *whole = tr_encode(k ? spaced : t, all);
        const int32_t *at = tr_data(whole);
        int64_t left = tr_numel(whole);
        for (int i = 0; i < 5; i++) {
            const tr_tensor *piece = tr_encode(k ? spaced : t, texts[i]);
            int64_t n = tr_numel(piece);
            assert_true(left > n && at[n] == 700);
            assert_memory_equal(at, tr_data(piece), (size_t)n * 4);
            at += n + 1;
            left -= n + 1;
        }
        assert_int_equal(left, 0);
    }
}

/* Any bytes come back from byte pairs, and a short buffer gets what fits. */
static void test_any_bytes(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tokenizer *t = load("gpt2.json");
    char bytes[3000], back[3000 + 1];
    uint32_t number = 1;
    for (size_t i = 0; i < sizeof bytes; i++) {
        number = number * 1664525u + 1013904223u;
        bytes[i] = (char)(number >> 24);
    }
    tr_tensor *ids = tr_encode(t, bytes, .bytes = sizeof bytes);
    size_t length;
    TR_CHECK(tr_decode(t, ids, .text = back, .bytes = sizeof back, .length = &length));
    assert_int_equal(length, sizeof bytes);
    assert_memory_equal(back, bytes, sizeof bytes);
    char few[5];
    TR_CHECK(tr_decode(t, tr_encode(t, "hello world"), .text = few, .bytes = sizeof few, .length = &length));
    assert_string_equal(few, "hell");
    assert_int_equal(length, 11);
    TR_CHECK(tr_decode(t, tr_encode(t, "hello world"), .length = &length));
    assert_int_equal(length, 11);
}

/* A word of a million letters takes no time that grows with its square. */
static void test_long_word(void **state)
{
    (void)state;
    TR_SCOPE;
    enum { count = 1000000 };
    char *text = malloc(count);
    assert_non_null(text);
    memset(text, 'a', count);
    tr_tensor *pairs = tr_encode(load("gpt2.json"), text, .bytes = count);
    tr_tensor *pieces = tr_encode(load("bert.json"), text, .bytes = count);
    free(text);
    TR_CHECK(tr_status_of(pairs));
    assert_true(tr_numel(pairs) > 1000);
    assert_int_equal(tr_numel(pieces), 3);
}

/* ---- Learning a vocabulary ---------------------------------------------------------------------------------------- */

static void test_train(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_text *text = tr_text_load(recorded_path("corpus.txt"), .validation = 0);
    tr_tokenizer *own = tr_tokenizer_train(text, .vocab = 701), *theirs = load("gpt2.json");
    TR_CHECK(tr_status_of(own));
    assert_int_equal(tr_tokenizer_vocab(own), 701);
    for (int id = 0; id < 701; id++) {
        size_t a, b;
        const char *x = tr_tokenizer_token(own, id, &a), *y = tr_tokenizer_token(theirs, id, &b);
        if (a != b || memcmp(x, y, a) != 0)
            fail_msg("token %d is \"%.*s\", not \"%.*s\"", id, (int)a, x, (int)b, y);
    }
    tr_tensor_list *file = recorded("tokenizers");
    for (int i = 0; text_of(file, "text.%d", i); i++)
        assert_ids(tr_encode(own, text_of(file, "text.%d", i)), recorded_find(file, "gpt2.%d", i), "own", i);

    /* No more tokens than the text has pairs that stand twice. */
    tr_tokenizer *all = tr_tokenizer_train(text, .vocab = 100000);
    assert_in_range(tr_tokenizer_vocab(all), 800, 10000);
    assert_int_equal(tr_status_of(tr_tokenizer_train(text, .vocab = 256)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "at least 257 tokens, not 256"));
    assert_int_equal(tr_status_of(tr_tokenizer_train(tr_text_load("nowhere"))), TR_NOT_FOUND);
}

/* A word without end makes no token that is too long for a file. */
static void test_train_on_a_long_word(void **state)
{
    (void)state;
    TR_SCOPE;
    static char word[40000];
    memset(word, 'a', sizeof word);
    tr_text *text = tr_text_load(files_write("word", word, sizeof word), .validation = 0);
    tr_tokenizer *t = tr_tokenizer_train(text, .vocab = 300);
    size_t bytes, longest = 0;
    for (int id = 0; id < tr_tokenizer_vocab(t); id++) {
        (void)tr_tokenizer_token(t, id, &bytes);
        if (bytes > longest) longest = bytes;
    }
    assert_int_equal(longest, 4096);
    TR_CHECK(tr_tokenizer_save(t, files_path("long.json")));
    TR_CHECK(tr_status_of(tr_tokenizer_load(files_path("long.json"))));
}

static void test_save(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor_list *file = recorded("tokenizers");
    static const char *const names[] = {"gpt2.json", "bert", "cased"};
    for (int k = 0; k < 3; k++) {
        const char *path = files_path("tokenizer.json");
        tr_tokenizer *t = load(names[k]);
        TR_CHECK(tr_tokenizer_save(t, path));
        tr_tokenizer *back = tr_tokenizer_load(path);
        TR_CHECK(tr_status_of(back));
        assert_int_equal(tr_tokenizer_vocab(back), tr_tokenizer_vocab(t));
        for (int i = 0; text_of(file, "text.%d", i); i++) {
            tr_tensor *a = tr_encode(t, text_of(file, "text.%d", i)), *b = tr_encode(back, text_of(file, "text.%d", i));
            assert_int_equal(tr_numel(a), tr_numel(b));
            assert_memory_equal(tr_data(a), tr_data(b), (size_t)tr_numel(a) * 4);
        }
    }
    assert_int_equal(tr_tokenizer_save(load("bert"), "/nowhere/tokenizer.json"), TR_IO);
}

/* What stood there stays, where the new one has no room. */
static void test_save_is_whole_or_not_at_all(void **state)
{
    (void)state;
    TR_SCOPE;
    const char *path = files_path("kept.json");
    tr_tokenizer *t = load("gpt2.json");
    TR_CHECK(tr_tokenizer_save(t, path));
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, before.rlim_max}), 0);
    tr_status status = tr_tokenizer_save(t, path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, TR_IO);
    TR_CHECK(tr_status_of(tr_tokenizer_load(path)));
}

/* ---- What cannot be read ------------------------------------------------------------------------------------------ */

static void assert_fails(const char *path, tr_status status, const char *part)
{
    TR_SCOPE;
    tr_status got = tr_status_of(tr_tokenizer_load(path));
    if (got != status || !strstr(tr_error_message(), part))
        fail_msg("%s: \"%s\" lacks \"%s\"", tr_status_name(got), tr_error_message(), part);
}

static const char *write_text(const char *name, const char *text)
{
    return files_write(name, text, strlen(text));
}

static void test_files(void **state)
{
    (void)state;
    assert_fails(files_path("none"), TR_NOT_FOUND, "No such file");
    write_text("empty/other", "");
    assert_fails(files_path("empty"), TR_NOT_FOUND, "there is no tokenizer.json, vocab.json or vocab.txt in the folder");
    assert_fails(write_text("cut.json", "{\"model\":"), TR_FORMAT, "cut.json: is no JSON from byte");
    assert_fails(write_text("number/vocab.json", "7"), TR_FORMAT, "no JSON object of tokens and ids");
    assert_fails(write_text("none/vocab.json", "{}"), TR_FORMAT, "there are no tokens");
    assert_fails(write_text("hole/vocab.json", "{\"a\":0,\"b\":2}"), TR_FORMAT, "\"b\" has no id from 0 to 1");
    assert_fails(write_text("twice/vocab.json", "{\"a\":0,\"b\":0}"), TR_FORMAT, "\"a\" and \"b\" have the same id, 0");
    assert_fails(write_text("same/vocab.json", "{\"a\":0,\"a\":1}"), TR_FORMAT, "tokens 0 and 1 are the same");
    assert_fails(write_text("byte/vocab.json", "{\"日\":0}"), TR_FORMAT, "holds a character that stands for no byte");
    const char *vocab = write_text("merge/vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    assert_fails(vocab, TR_NOT_FOUND, "merges.txt: ");
    write_text("merge/merges.txt", "#version: 0.2\na b\na\n");
    assert_fails(vocab, TR_FORMAT, "merges.txt: line 3 has no two tokens");
    write_text("merge/merges.txt", "a b\nb a\n");
    assert_fails(vocab, TR_FORMAT, "line 2: the vocabulary does not have the result of a merge");
    write_text("merge/merges.txt", "a b\na b\n");
    assert_fails(vocab, TR_FORMAT, "line 2: merges 0 and 1 are of the same pair");
    assert_fails(write_text("words/vocab.txt", "[UNK]\n[CLS]\na\n"), TR_FORMAT, "has no [SEP]");
    assert_fails(write_text("words/vocab.txt", "[UNK]\na\na\n"), TR_FORMAT, "line 3 is the same token as line 2: \"a\"");
    assert_fails(write_text("words/vocab.txt", "[UNK]\n\xff\n"), TR_FORMAT, "line 2 is not UTF-8");
}

static void test_unsupported(void **state)
{
    (void)state;
    assert_fails(write_text("t.json", "{\"model\":{\"type\":\"Unigram\"}}"), TR_UNSUPPORTED,
        "its model is Unigram; Trireme has BPE and WordPiece");
    assert_fails(write_text("t.json", "{\"model\":{\"type\":\"BPE\"},\"pre_tokenizer\":{\"type\":\"Metaspace\"}}"),
        TR_UNSUPPORTED, "its pre_tokenizer is Metaspace; Trireme has ByteLevel");
    assert_fails(write_text("t.json", "{\"model\":{\"type\":\"BPE\"},\"normalizer\":{\"type\":\"NFC\"}}"), TR_UNSUPPORTED,
        "its normalizer is NFC; Trireme has none");
    assert_fails(write_text("t.json",
                     "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}"),
        TR_UNSUPPORTED, "its model has byte_fallback");
}

static void test_misuse(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tokenizer *t = load("gpt2.json");
    tr_tensor *ids = tr_from(((int32_t[]){5, 701}), TR_SHAPE(2), .dtype = TR_I32);
    assert_int_equal(tr_decode(t, ids), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "701 is no token, they are 0 to 700"));
    assert_int_equal(tr_decode(t, tr_ones(TR_SHAPE(2))), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "ids are i32 or i64, not f32"));
    assert_int_equal(tr_status_of(tr_encode(t, NULL)), TR_INVALID);
    tr_tokenizer *none = tr_tokenizer_load("/nowhere");
    assert_int_equal(tr_status_of(tr_encode(none, "a")), TR_NOT_FOUND);
    assert_int_equal(tr_decode(none, ids), TR_NOT_FOUND);
    assert_int_equal(tr_tokenizer_vocab(none), 0);
    write_text("few/vocab.json", "{\"a\":0}");
    write_text("few/merges.txt", "");
    assert_int_equal(tr_status_of(tr_encode(tr_tokenizer_load(files_path("few")), "ab")), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "has no token for the byte 0x62"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_pairs),
        cmocka_unit_test(test_word_pieces),
        cmocka_unit_test(test_two_files),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_texts_between_special_tokens),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_train_on_a_long_word),
        cmocka_unit_test(test_save),
        cmocka_unit_test(test_save_is_whole_or_not_at_all),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
