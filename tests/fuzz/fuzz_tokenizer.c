/* Tokenizers: the files that they are read from, and the texts that they cut. */
/* fuzz: 20000, soak: 1000000 */
#include "fuzz.h"

#include <trireme/trireme.h>

#include <sys/mman.h>
#include <unistd.h>

/* The first byte says what the others are. */
enum { TOKENIZER_JSON, VOCAB_JSON, MERGES_TXT, VOCAB_TXT, TEXT, KINDS }; /* the first four are files, in order of names */

static const char byte_pairs[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<|e|>\",\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3},\"merges\":[\"a b\"]}}";
static const char vocab_json[] = "{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3,\"\xc4\xa0""ab\":4}";
static const char merges_txt[] = "#version: 0.2\na b\n\xc4\xa0 ab\n";
static const char vocab_txt[] = "[UNK]\n[CLS]\n[SEP]\na\n##b\n##ab\n\xc3\xa9\n";
static const char text[] = "ab  <|e|> it's \xc3\xa9\xe6\x97\xa5\xed\x95\x9c 12 [SEP]\n\n \xf0\x9f\x91\x8d";

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static const char *const seeds[] = {byte_pairs, vocab_json, merges_txt, vocab_txt, text};
    size_t count = strlen(seeds[number % KINDS]);
    bytes[0] = (uint8_t)(number % KINDS);
    memcpy(bytes + 1, seeds[number % KINDS], count);
    return count + 1;
}

static char folder[] = "/tmp/trireme-fuzz-XXXXXX";
static tr_tokenizer *pairs; /* one with all bytes and some merges */

/* The files lie in memory; the folder has links to them. */
static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt", "vocab.txt"};
enum { FILES = sizeof names / sizeof *names };
static int files[FILES];

static const char *path_of(int file)
{
    static char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, names[file]);
    return path;
}

static const char *write_file(int file, const void *bytes, size_t count)
{
    FUZZ_CHECK(ftruncate(files[file], 0) == 0 && pwrite(files[file], bytes, count, 0) == (ssize_t)count);
    return path_of(file);
}

static void clear(void)
{
    for (int i = 0; i < FILES; i++) unlink(path_of(i));
    rmdir(folder);
    tr_release(pairs);
}

/* exact: what it cuts comes back, byte for byte. */
static void use(const tr_tokenizer *t, const uint8_t *bytes, size_t count, bool exact)
{
    TR_SCOPE;
    if (tr_status_of(t) != TR_OK || !count) return;
    tr_tensor *ids = tr_encode(t, (const char *)bytes, .bytes = count);
    if (tr_status_of(ids) != TR_OK) {
        FUZZ_CHECK(tr_status_of(ids) == TR_INVALID); /* a byte that has no token */
        return;
    }
    size_t length;
    char *back = malloc(4 * count + 4096);
    FUZZ_CHECK(back);
    FUZZ_CHECK(tr_decode(t, ids, .text = back, .bytes = 4 * count + 4096, .length = &length, .special = true) == TR_OK);
    if (exact) FUZZ_CHECK(length == count && memcmp(back, bytes, count) == 0);
    free(back);
}

static void use_files(const uint8_t *bytes, size_t count, int kind)
{
    TR_SCOPE;
    bool vocab = kind == VOCAB_JSON;
    write_file(MERGES_TXT, vocab ? (const void *)merges_txt : bytes, vocab ? strlen(merges_txt) : count);
    write_file(VOCAB_JSON, vocab ? (const void *)bytes : vocab_json, vocab ? count : strlen(vocab_json));
    use(tr_tokenizer_load(path_of(VOCAB_JSON)), (const uint8_t *)"ab ab b a", 9, true);
}

static void set_up(void)
{
    FUZZ_CHECK(mkdtemp(folder));
    atexit(clear);
    for (int i = 0; i < FILES; i++) {
        char target[40];
        files[i] = memfd_create(names[i], MFD_CLOEXEC);
        snprintf(target, sizeof target, "/proc/self/fd/%d", files[i]);
        FUZZ_CHECK(files[i] >= 0 && symlink(target, path_of(i)) == 0);
    }
    pairs = tr_keep(tr_tokenizer_train(tr_text_load(write_file(VOCAB_TXT, text, strlen(text)), .validation = 0), .least = 1));
    FUZZ_CHECK(tr_status_of(pairs) == TR_OK && tr_tokenizer_vocab(pairs) > 270);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (!pairs) set_up();
    TR_SCOPE;
    int kind = count ? bytes[0] % KINDS : TEXT;
    if (count) bytes++, count--;
    if (kind == VOCAB_JSON || kind == MERGES_TXT) use_files(bytes, count, kind);
    if (kind == TOKENIZER_JSON) use(tr_tokenizer_load(write_file(kind, bytes, count)), (const uint8_t *)text, 9, false);
    if (kind == VOCAB_TXT) use(tr_tokenizer_load(write_file(kind, bytes, count)), (const uint8_t *)text, strlen(text), false);
    if (kind != TEXT) return 0;
    use(pairs, bytes, count, true);
    use(tr_tokenizer_load(write_file(VOCAB_TXT, vocab_txt, strlen(vocab_txt))), bytes, count, false);
    return 0;
}
