/* `trireme train gpt` and its like: language models on a text, in bytes or in tokens. */
#include "train_text.h"

#include "bench_result.h"
#include "system.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PRESETS_MOST = 8 };

typedef struct text_training {
    const tr__language *language;
    tr__train_kind kind;
    const char *names[PRESETS_MOST + 1]; /* of presets, NULL behind them */
    const char *suffixes, *preset;
    const char *tokenizer; /* "bytes", or a path */
    int layers, heads, dim, context;
    double dropout;
    tr_tokenizer *tokens;  /* NULL: bytes, or not read yet */
    tr_masking masking;    /* where the language has one */
    tr_text *text;         /* NULL: not read yet */
    char folder[32];
} text_training;

static tr__language_size size_of(const tr__train *t)
{
    const text_training *m = t->own;
    return (tr__language_size){.vocab = m->tokens ? tr_tokenizer_vocab(m->tokens) : m->language->byte_vocab,
                               .context = m->context,
                               .layers = m->layers,
                               .heads = m->heads,
                               .dim = m->dim,
                               .dropout = m->dropout,
                               .seed = (uint64_t)t->seed};
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static const tr__setting settings[] = {
    {"suffixes", true}, {"preset", true},  {"layers", true},    {"heads", true}, {"dim", true},
    {"context", true},  {"dropout", true}, {"tokenizer", true}, {0},
};

static int options(tr__train *t, tr__option *out)
{
    text_training *m = t->own;
    const int many = INT_MAX;
    const tr__option own[] = {
        {"suffixes", 0, "LIST", "of a folder only files whose names end so: \".c .h\"", TR__TEXT(&m->suffixes)},
        {"preset", 0, "NAME", "the model's size", TR__TEXT(&m->preset), .choices = m->names},
        {"layers", 0, "N", "layers instead of the preset's", TR__INTEGER(&m->layers, 1, 1000)},
        {"heads", 0, "N", "attention heads instead of the preset's", TR__INTEGER(&m->heads, 1, 1000)},
        {"dim", 0, "N", "width instead of the preset's", TR__INTEGER(&m->dim, 1, 100000)},
        {"tokenizer", 0, "PATH", m->language->tokenizer_help, TR__TEXT(&m->tokenizer)},
        {"context", 0, "N", "tokens that the model sees at once, instead of the preset's",
         TR__INTEGER(&m->context, 1, 1000000)},
        {"dropout", 0, "P", "share of activations dropped in training", TR__NUMBER(&m->dropout, 0, 0.99)},
        {"steps", 0, "N", "steps of the schedule (the preset's)", TR__INTEGER(&t->steps, 1, many)},
        {"batch", 0, "N", "windows in a step, of all ranks together (the preset's)",
         TR__INTEGER(&t->batch, 1, 1000000)},
        {"micro-batch", 0, "N", "windows that a rank computes at once (as many as memory allows)",
         TR__INTEGER(&t->micro_batch, 1, 1000000)},
        {"lr", 0, "X", "learning rate after the warm-up (the preset's); it ends at a tenth",
         TR__NUMBER(&t->lr, 1e-12, 1000)},
        {"warmup", 0, "N", "steps of warm-up (the preset's)", TR__INTEGER(&t->warmup, 0, many)},
    };
    memcpy(out, own, sizeof own);
    return (int)(sizeof own / sizeof *own);
}

static void or_default(int *value, int otherwise)
{
    if (!*value) *value = otherwise;
}

/* What was not given comes from the preset. */
static int fill_in(tr__train *t)
{
    text_training *m = t->own;
    const tr__language_preset *p = m->language->presets;
    while (strcmp(p->name, m->preset) != 0) p++;
    tr__language_size size = {0};
    if (m->language->preset(m->preset, &size) != TR_OK) return tr__complain(t->command, "%s", tr_error_message());
    char *full = strcmp(m->tokenizer, "bytes") != 0 ? realpath(m->tokenizer, NULL) : NULL;
    if (full) m->tokenizer = tr__train_own(t, full); /* a resumed run and sampling may be elsewhere */
    or_default(&m->layers, size.layers);
    or_default(&m->heads, size.heads);
    or_default(&m->dim, size.dim);
    or_default(&m->context, size.context);
    or_default(&t->batch, p->batch);
    or_default(&t->steps, p->steps);
    or_default(&t->save_every, p->save_every);
    int code = tr__train_method(t, "adamw", p->lr);
    if (code >= 0 || t->resume) return code; /* the checkpoint has said the rest */
    if (!tr__train_given(t, "min-lr")) t->min_lr = t->lr / 10;
    if (!tr__train_given(t, "warmup")) t->warmup = p->warmup < t->steps / 10 ? p->warmup : t->steps / 10;
    return -1;
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

/* Word pieces put special tokens around a text, also around none. */
static tr_status check_kind(const text_training *m)
{
    TR_SCOPE;
    tr_tensor *none = m->tokens ? tr_encode(m->tokens, "") : NULL;
    if (tr_status_of(none) != TR_OK || !none || !m->language->pairs_only || tr_numel(none) == 0) return tr_status_of(none);
    return tr_fail(TR_INVALID, "--tokenizer %s: its word pieces leave out spaces and capitals, so that no text comes of what "
                               "a GPT says: give one of byte pairs, such as `trireme tokenizer train` makes", m->tokenizer);
}

/* The tokenizer, once, and how it masks. */
static tr_status read_tokenizer(const tr__train *t)
{
    text_training *m = t->own;
    if (!m->tokens && strcmp(m->tokenizer, "bytes") != 0) m->tokens = tr_tokenizer_load(m->tokenizer);
    TRY(tr_status_of(m->tokens));
    TRY(check_kind(m));
    return m->language->masking ? m->language->masking(m->tokens, &m->masking) : TR_OK;
}

/* Tokens of the text in a window: one more than the context when the model predicts the next one; two fewer when tokens are
 * masked, because special tokens stand at both ends. */
static int window(const text_training *m)
{
    return m->language->masking ? m->context - 2 : m->context + 1;
}

static tr_text *read_text(const tr__train *t)
{
    const text_training *m = t->own;
    return tr_text_load(t->data, .suffixes = m->suffixes, .tokenizer = m->tokens);
}

static const char *unit(const text_training *m)
{
    return m->tokens ? "tokens" : "bytes";
}

static int check_text(tr__train *t, int64_t world)
{
    text_training *m = t->own;
    struct stat s;
    if ((world > 1 || t->max_restarts) && stat(t->data, &s) == 0 && S_ISFIFO(s.st_mode))
        return tr__complain(t->command, "%s is a pipe, which can be read once, by one rank: give a file", t->data);
    m->text = read_text(t);
    if (tr_status_of(m->text) != TR_OK) return tr__complain(t->command, "%s", tr_error_message());
    int64_t training = tr_text_tokens(m->text, false), validation = tr_text_tokens(m->text, true);
    if (training < window(m))
        return tr__complain(t->command, "%s is too short: its %" PRId64 " %s leave %" PRId64 " for training, and a context "
            "of %d takes at least %d: give a longer text or a smaller --context", t->data, training + validation, unit(m), training,
            m->context, window(m));
    if (t->keep_best && !t->resume && validation < window(m))
        return tr__complain(t->command, "--keep-best: nothing is validated, as %s leaves %" PRId64 " %s for that, and a context of "
            "%d takes at least %d", t->data, validation, unit(m), m->context, window(m));
    char content[sizeof t->content];
    snprintf(content, sizeof content, "%" PRId64 " %s, %016" PRIx64, training + validation, unit(m),
             tr_text_hash(m->text));
    return tr__train_content(t, content);
}

/* ---- Sizes and memory -------------------------------------------------------------------------------------------- */

/* A rank besides: the program, its libraries, the matrix engine's kernels and buffers. */
static const double rank_bytes = 40e6;

/* Chooses --micro-batch when it was not given, and refuses what cannot fit in the host's memory. On other devices than the CPU it
 * does neither: their memory is not looked at. */
static int check_memory(tr__train *t, int64_t world)
{
    const text_training *m = t->own;
    const double gib = 1 << 30;
    if (strncmp(t->device, "cpu", 3) != 0) return -1;
    tr__language_size o = size_of(t);
    double window_bytes = m->language->window_bytes(&o);
    int64_t local = tr__train_local_ranks(t), text_bytes = tr_text_tokens(m->text, false) + tr_text_tokens(m->text, true);
    if (m->tokens) text_bytes *= (int64_t)sizeof(int32_t);
    int64_t share = (t->batch + world - 1) / world, windows = t->micro_batch ? t->micro_batch : share;
    if (windows > share) windows = share;
    /* Weights and two moments, of f32, or the moments of bf16. */
    double fixed = (t->bf16_state ? 8.0 : 12.0) * (double)t->parameters + rank_bytes + (double)text_bytes;
    const double buckets = world > 1 ? 3 * 25.0 * (1 << 20) / sizeof(float) : 0; /* what ranks average at a time */
    double left = tr__memory_left_gib() * gib, most = 0.95 * left / (double)local, each;
    bool whole, fits;
    for (;; windows = (windows + 1) / 2) {
        /* As the trainer chooses. Then there is little of the gradients but the table's, which the head adds to first and the
         * embedding last. */
        const char *differ = t->allow_different ? t->allow_different : "";
        bool alike = world == 1 || (!strstr(differ, "clip") && !strstr(differ, "stop_on_spike"));
        bool in_backward = t->step_in_backward || (alike && t->clip == 0 && !t->stop_on_spike && windows == share);
        whole = !in_backward || (t->resume && world > 1); /* a first backward of several ranks has all, and its state then, too */
        double gradients = whole ? (double)t->parameters : (double)o.vocab * o.dim + buckets;
        each = fixed + 4 * gradients + (double)windows * window_bytes;
        fits = each <= most;
        if (fits || windows == 1 || t->micro_batch || t->step_in_backward) break;
    }
    if (!fits && left > 0)
        return tr__complain(t->command, "too little memory: %" PRId64 " rank%s of %.2f GiB (%.2fM parameters with %smoments, "
            "activations of %" PRId64 " window%s) take%s %.1f GiB, and %.1f GiB are left: %s a smaller model", local,
            local > 1 ? "s" : "", each / gib, (double)t->parameters / 1e6, whole ? "gradients and " : "", windows,
            windows > 1 ? "s" : "", local > 1 ? "" : "s", each * (double)local / gib, left / gib,
            local > 1 ? "take fewer ranks or" : windows > 1 ? "take a smaller --micro-batch or" : "take");
    if (windows < share) t->micro_batch = (int)windows;
    return -1;
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

/* As training starts; fresh: not from a checkpoint. */
static tr_status make_model(tr__train *t, bool fresh, tr_module **model)
{
    const text_training *m = t->own;
    tr__language_size size = size_of(t);
    const tr__train_weights weights = {
        .rename = m->language->rename, .table = m->language->positions, .rows = m->context};
    *model = m->language->build(&size);
    tr_status status = tr_status_of(*model);
    return status == TR_OK && fresh ? tr__train_begin_with(t, *model, &weights) : status;
}

static int check(tr__train *t, int64_t world)
{
    const text_training *m = t->own;
    if (m->dim % m->heads)
        return TR__MISUSE(t->command, "--dim must be a multiple of --heads: %d is not one of %d", m->dim, m->heads);
    if (window(m) < 1)
        return TR__MISUSE(t->command, "--context %d leaves no room between the first and the last token of a window: give "
            "at least 3", m->context);
    if (t->batch < world)
        return tr__complain(t->command, "a batch of %d windows cannot be shared out over %" PRId64 " ranks: give a larger "
            "--batch or fewer --ranks", t->batch, world);
    if (read_tokenizer(t) != TR_OK) return tr__complain(t->command, "%s", tr_error_message());
    tr__language_size o = size_of(t);
    t->parameters = m->language->parameters(&o);
    int code = check_text(t, world);
    return code < 0 ? check_memory(t, world) : code;
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

static const char *folder(const tr__train *t)
{
    text_training *m = t->own;
    snprintf(m->folder, sizeof m->folder, "%s-%s", m->language->name, m->preset);
    return m->folder;
}

static tr_status trainer(tr__train *t, tr_group *group, const char *resume, tr_trainer **out)
{
    text_training *m = t->own;
    tr_module *model;
    TRY(read_tokenizer(t));
    TRY(make_model(t, !resume, &model));
    TRY(tr__train_prepare(t, group, model));
    tr__language_size size = size_of(t);
    t->parameters = m->language->parameters(&size);
    if (!m->text) m->text = read_text(t);
    *out = tr_trainer_new(model, m->text, .group = group, .context = m->context, .global_batch = t->batch,
                      .micro_batch = t->micro_batch, .steps = t->steps, .warmup_steps = t->warmup, .lr = t->lr,
                      .min_lr = t->min_lr, .weight_decay = t->weight_decay,
                      .clip = t->clip, .seed = (uint64_t)t->seed, .autocast = tr__train_autocast(t),
                      .optimizer = tr__train_optimizer_maker(t), .user = t,
                      .step_in_backward = t->step_in_backward, .check_replicas = t->check_replicas,
                      .stop_on_spike = t->stop_on_spike,
                      .loss = m->language->loss,
                      .masking = m->language->masking ? &m->masking : NULL, .resume = resume,
                      .allow_different = t->allow_different);
    return tr_status_of(*out);
}

/* What the model is asked for besides the settings. */
static tr_status describe(const tr__train *t, tr_tensor_list *about)
{
    char vocab[16];
    snprintf(vocab, sizeof vocab, "%d", size_of(t).vocab);
    return tr_list_set_metadata(about, "trireme.vocab", vocab);
}

static void introduce(const tr__train *t)
{
    const text_training *m = t->own;
    fprintf(stderr, "%s: %d layers, %d heads, %d wide, context %d: %.2fM parameters\n", m->language->title, m->layers,
            m->heads, m->dim, m->context, (double)t->parameters / 1e6);
    fprintf(stderr, "%s: %" PRId64 " %s to train on, %" PRId64 " to validate\n", t->data,
            tr_text_tokens(m->text, false), unit(m), tr_text_tokens(m->text, true));
    if (tr_text_tokens(m->text, true) < window(m))
        fprintf(stderr, "There is no validation: its part of the text is shorter than the context\n");
}

static void report(const tr__train *t, cJSON *object)
{
    const text_training *m = t->own;
    cJSON_AddStringToObject(object, "preset", m->preset);
    TR__ADD_NUMBERS(object, {"layers", m->layers}, {"heads", m->heads}, {"dim", m->dim}, {"context", m->context});
}

static tr__train_kind kind_of(const tr__language *language)
{
    return (tr__train_kind){
        .about = language->about,
        .data_help = "the text: a file, or a folder of text files",
        .data_missing = "--data PATH is missing: the text to learn, a file or a folder",
        .item = "token",
        .options = options,
        .settings = settings,
        .fill_in = fill_in,
        .check = check,
        .folder = folder,
        .model = make_model,
        .trainer = trainer,
        .describe = describe,
        .introduce = introduce,
        .report = report,
        .advise = language->advise,
    };
}

bool tr__train_text_begin(tr__train *t, const char *model)
{
    static const tr__language *const languages[] = {&tr__language_gpt, &tr__language_bert};
    static text_training own; /* of the one command that a process runs */
    for (size_t i = 0; i < sizeof languages / sizeof *languages; i++) {
        const tr__language *l = languages[i];
        if (strcmp(model, l->name) != 0) continue;
        own = (text_training){.language = l, .kind = kind_of(l), .preset = l->presets->name, .tokenizer = "bytes"};
        for (int k = 0; k < PRESETS_MOST && l->presets[k].name; k++) own.names[k] = l->presets[k].name;
        t->kind = &own.kind;
        t->own = &own;
        t->weight_decay = 0.1;
        t->clip = 1;
        t->eval_every = 250;
        return true;
    }
    return false;
}
