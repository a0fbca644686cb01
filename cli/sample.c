/* trireme sample: lets a trained GPT go on with a text. */
#include "command.h"
#include "options.h"
#include "terminal.h"
#include "train_text.h"

#include <trireme/trireme.h>

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE "sample"

typedef struct sample {
    const char *from, *prompt;
    int tokens, top_k, seed, threads;
    double temperature;
    bool terminal; /* stdout is one */
    int lead, more; /* the byte shown last, and how many its UTF-8 character still has */
    int vocab, context;
    tr_module *model;
    tr_tokenizer *tokenizer; /* NULL: bytes */
    float *logits, *sorted;  /* [vocab], to draw with */
} sample;

/* ---- The model --------------------------------------------------------------------------------------------------- */

static bool read_number(const tr_tensor_list *list, const char *key, int most, int *out)
{
    const char *text = tr_list_metadata(list, key);
    long value = text ? strtol(text, NULL, 10) : 0;
    *out = value >= 1 && value <= most ? (int)value : 0;
    return *out != 0;
}

/* What the checkpoint says that it is; sizes up to those that training takes. */
static bool read_size(const tr_tensor_list *list, tr__language_size *size)
{
    enum { MOST_CONTEXT = 1000000 };
    const char *kind = tr_list_metadata(list, "trireme.model");
    *size = (tr__language_size){0};
    return kind && !strcmp(kind, "gpt") &&
           read_number(list, "trireme.vocab", INT_MAX - MOST_CONTEXT, &size->vocab) &&
           read_number(list, "trireme.context", MOST_CONTEXT, &size->context) &&
           read_number(list, "trireme.layers", 1000, &size->layers) &&
           read_number(list, "trireme.heads", 1000, &size->heads) && read_number(list, "trireme.dim", 100000, &size->dim);
}

/* The model, as large as its file: one that is not could take all memory before anything else shows. */
static int build(sample *s, const char *path, const tr_tensor_list *list, const tr__language_size *size)
{
    int64_t wanted = tr__language_gpt.parameters(size), there = tr_list_numel(list);
    if (wanted == there) {
        s->vocab = size->vocab;
        s->context = size->context;
        s->model = tr_keep(tr__language_gpt.build(size));
        return -1;
    }
    return tr__complain(SAMPLE, "%s is damaged: it has %" PRId64 " parameters, and a GPT of its vocab %d, context %d, layers %d, "
        "heads %d and dim %d has %" PRId64, path, there, size->vocab, size->context, size->layers, size->heads, size->dim, wanted);
}

/* The newest weights; where they are damaged, those of the newest checkpoint that is whole, after a warning. */
static tr_status find_weights(const char *folder, char path[PATH_MAX], tr_tensor_list **list)
{
    int64_t step;
    tr_status status = tr_checkpoint_find(folder, path, &step);
    if (status == TR_OK) status = tr_checkpoint_load(path, list, NULL);
    if (status != TR_FORMAT) return status;
    tr__print_warnings(SAMPLE);
    status = tr_checkpoint_find_whole(folder, path, &step);
    return status == TR_OK ? tr_checkpoint_load(path, list, NULL) : status;
}

static int load(sample *s)
{
    TR_SCOPE;
    char path[PATH_MAX];
    tr_tensor_list *list;
    if (find_weights(s->from, path, &list) != TR_OK) return tr__failed(SAMPLE);
    const char *tokenizer = tr_list_metadata(list, "trireme.tokenizer");
    tr__language_size size;
    if (!tokenizer || !read_size(list, &size))
        return tr__complain(SAMPLE, "%s was not written by `trireme train gpt`: it does not say what model it is", path);
    if (tr_check_finite(list) != TR_OK)
        return tr__complain(SAMPLE, "%s: %s. Its training has diverged: take an earlier checkpoint, if `trireme checkpoint verify` "
            "finds one that is finite, and train on from there with a lower --lr", path, tr_error_message());
    int code = build(s, path, list, &size);
    if (code >= 0) return code;
    if (strcmp(tokenizer, "bytes") != 0) s->tokenizer = tr_keep(tr_tokenizer_load(tokenizer));
    if (tr_status_of(s->tokenizer) != TR_OK) return tr__failed(SAMPLE);
    if (s->vocab != (s->tokenizer ? tr_tokenizer_vocab(s->tokenizer) : 256))
        return tr__complain(SAMPLE, "%s: the model has %d tokens, and %s is another vocabulary", path, s->vocab, tokenizer);
    s->logits = malloc(2 * (size_t)s->vocab * sizeof *s->logits);
    if (!s->logits) return tr__complain(SAMPLE, "out of memory");
    s->sorted = s->logits + s->vocab;
    if (tr_load_state_dict(s->model, list) == TR_OK && tr_eval(s->model) == TR_OK) return -1;
    return tr__complain(SAMPLE, "%s: %s", path, tr_error_message());
}

/* ---- Drawing ----------------------------------------------------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th greatest logit; the least one when k is 0. */
static float threshold(const sample *s)
{
    int n = s->vocab, k = s->top_k;
    if (k <= 0 || k >= n) return -INFINITY;
    memcpy(s->sorted, s->logits, (size_t)n * sizeof *s->sorted);
    qsort(s->sorted, (size_t)n, sizeof *s->sorted, descending);
    return s->sorted[k - 1];
}

/* A token by softmax(logits / temperature) among the top k; uniform in [0, 1) says which. */
static int draw(const sample *s, float uniform)
{
    const float *logits = s->logits;
    int n = s->vocab, best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    if (s->temperature <= 0) return best;
    float least = threshold(s);
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (logits[i] >= least) sum += exp((logits[i] - logits[best]) / s->temperature);
    double left = uniform * sum;
    for (int i = 0; i < n; i++) {
        if (logits[i] < least) continue;
        left -= exp((logits[i] - logits[best]) / s->temperature);
        if (left < 0) return i;
    }
    return best;
}

/* The next token after ids [0, count); the model sees as many of the last ones as its context holds. */
static tr_status next(const sample *s, const int32_t *ids, int64_t count, float uniform, int32_t *out)
{
    TR_SCOPE;
    int64_t seen = count < s->context ? count : s->context, vocab = s->vocab;
    tr_tensor *x = tr_from(ids + count - seen, TR_SHAPE(1, seen), .dtype = TR_I32);
    tr_tensor *logits = tr_forward(s->model, x); /* [1, seen, vocab] */
    tr_tensor *last = tr_slice(logits, 1, seen - 1, seen);
    TRY(tr_copy_out(last, s->logits, (size_t)vocab * sizeof *s->logits));
    for (int64_t i = 0; i < vocab; i++) {
        if (isfinite(s->logits[i])) continue;
        (void)tr_fail(TR_INVALID, "the model gives token %" PRId64 " of its vocabulary the logit %g: its weights are finite, and too large "
                                  "to compute with", i, (double)s->logits[i]);
        return TR_INVALID;
    }
    *out = draw(s, uniform);
    return TR_OK;
}

/* What a model writes may hold control characters, which would act on a terminal: those of ASCII, and in UTF-8 \xc2 and
 * a byte from \x80 to \x9f, which also acts where it stands alone. */
static void show(sample *s, int byte)
{
    bool continues = byte >= 0x80 && byte < 0xc0 && s->more > 0;
    bool acts = (byte < ' ' && byte != '\n' && byte != '\t') || byte == 127 ||
                (byte >= 0x80 && byte < 0xa0 && (!continues || s->lead == 0xc2));
    putchar(s->terminal && acts ? '?' : byte);
    s->more = continues && !acts ? s->more - 1 : byte < 0xc2 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    s->lead = byte;
}

static void show_token(sample *s, int32_t id)
{
    size_t bytes = 1;
    const char *token = s->tokenizer ? tr_tokenizer_token(s->tokenizer, id, &bytes) : NULL;
    if (!s->tokenizer) show(s, id);
    for (size_t i = 0; token && i < bytes; i++) show(s, (unsigned char)token[i]);
}

static tr_status go_on(sample *s, int32_t *ids, int64_t count)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *uniform = tr_rand((uint64_t)s->seed, TR_SHAPE(s->tokens));
    tr_status status = tr_status_of(uniform);
    for (int64_t i = 0; i < s->tokens && status == TR_OK; i++, count++) {
        int32_t token = 0;
        status = next(s, ids, count, ((const float *)tr_data(uniform))[i], &token);
        ids[count] = token;
        if (status == TR_OK) show_token(s, token);
        fflush(stdout);
        if (ferror(stdout)) return tr_fail(TR_IO, "cannot write the text");
    }
    return status;
}

/* The prompt's tokens, to be freed, with room for those to come. */
static int32_t *read_prompt(const sample *s, int64_t *count)
{
    tr_tensor *tokens = s->tokenizer ? tr_encode(s->tokenizer, s->prompt) : NULL;
    if (tr_status_of(tokens) != TR_OK) return NULL;
    *count = tokens ? tr_numel(tokens) : (int64_t)strlen(s->prompt);
    int32_t *ids = malloc((size_t)(*count + s->tokens + 1) * sizeof *ids);
    if (!ids) (void)tr_fail(TR_NO_MEMORY, "out of memory");
    for (int64_t i = 0; ids && i < *count; i++)
        ids[i] = tokens ? ((const int32_t *)tr_data(tokens))[i] : (unsigned char)s->prompt[i];
    return ids;
}

static int write_text(sample *s)
{
    TR_SCOPE;
    int64_t count = 0;
    int32_t *ids = read_prompt(s, &count);
    if (!ids) return tr__failed(SAMPLE);
    for (int64_t i = 0; i < count; i++) show_token(s, ids[i]);
    tr_status status = go_on(s, ids, count);
    free(ids);
    putchar('\n');
    if (status != TR_OK) return tr__failed(SAMPLE);
    return tr__printed(SAMPLE);
}

int tr__cli_sample(int argc, char **argv)
{
    TR_SCOPE;
    sample s = {.tokens = 400, .top_k = 40, .seed = 1, .temperature = 0.8};
    const tr__option options[] = {
        {"from", 0, "FOLDER", "a folder that `trireme train gpt` wrote, or a checkpoint in it", TR__TEXT(&s.from),
            .required = true},
        {"prompt", 0, "TEXT", "what the text begins with", TR__TEXT(&s.prompt)},
        {"tokens", 0, "N", "tokens to write, which are bytes where the model has learned bytes", TR__INTEGER(&s.tokens, 1, 100000000)},
        {"temperature", 0, "X", "above 1: bolder, below: safer, 0: always the likeliest",
            TR__NUMBER(&s.temperature, 0, 100)},
        {"top-k", 0, "K", "draw from the K likeliest only; 0: from all", TR__INTEGER(&s.top_k, 0, 1000000)},
        {"seed", 0, "N", "another seed, another text", TR__INTEGER(&s.seed, 0, INT_MAX)},
        {"threads", 0, "N", "threads to compute with (all cores)", TR__INTEGER(&s.threads, 1, 1024)},
        {0},
    };
    const tr__syntax syntax = {SAMPLE, NULL, "Lets a GPT that `trireme train gpt` has trained go on with a text.",
        options, .operands = {0, 0}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code >= 0) return code;
    if (s.threads && tr_set_threads(s.threads) != TR_OK) return tr__failed(SAMPLE);
    s.terminal = isatty(STDOUT_FILENO);
    code = load(&s);
    if (!s.prompt) s.prompt = "\n"; /* a model needs something to go on from */
    if (code < 0) code = write_text(&s);
    tr_release(s.model);
    tr_release(s.tokenizer);
    free(s.logits);
    return code;
}
