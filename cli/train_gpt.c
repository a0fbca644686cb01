/* `trireme train gpt`: language modelling, which predicts the next token. */
#include "train_text.h"

#include "terminal.h"

#include <limits.h>
#include <stdio.h>

static tr_module *build(const tr__language_size *s)
{
    return tr_gpt(.vocab = s->vocab, .context = s->context, .layers = s->layers, .heads = s->heads, .dim = s->dim,
                  .dropout = s->dropout, .seed = s->seed);
}

static tr_status preset(const char *name, tr__language_size *size)
{
    tr_gpt_options o = {.size = sizeof o};
    tr_status status = tr_gpt_preset(name, &o);
    *size = (tr__language_size){.context = o.context, .layers = o.layers, .heads = o.heads, .dim = o.dim};
    return status;
}

static int64_t parameters(const tr__language_size *s)
{
    int64_t dim = s->dim;
    return (s->vocab + s->context) * dim + s->layers * (12 * dim * dim + 13 * dim) + 2 * dim;
}

/* Per token and layer the packed projection (3), attention's output, the MLP's inside before GELU (4) and the residual
 * stream (2), each of dim floats; and the logits with their gradient. */
static double window_bytes(const tr__language_size *s)
{
    return 4.0 * s->context * ((10.0 * s->layers + 6.0) * s->dim + 2.0 * s->vocab);
}

/* Their model is inside "transformer", and some files also hold masks and the tied head. */
static const tr_rename names[] = {
    {"transformer.*", "*"}, {"*.attn.bias", NULL}, {"*.attn.masked_bias", NULL}, {"lm_head.weight", NULL}, {NULL, NULL},
};

static void advise(const tr__train *t)
{
    char word[PATH_MAX];
    printf("Try: trireme sample --from %s --prompt \"…\"\n", tr__shell_word(t->out, word, sizeof word));
}

static const tr__language_preset presets[] = {
    {"nano", 12, 2000, 100, 500, 3e-3},
    {"mini", 16, 3000, 100, 200, 1e-3},
    {"gpt2", 32, 10000, 500, 100, 6e-4},
    {"gpt2-medium", 32, 10000, 500, 100, 3e-4},
    {"gpt2-large", 32, 10000, 500, 100, 2.5e-4},
    {"gpt2-xl", 32, 10000, 500, 100, 2e-4},
    {0},
};

const tr__language tr__language_gpt = {
    .name = "gpt",
    .title = "GPT",
    .about = "Trains a GPT on a text, on one process or several, and keeps what it learned.",
    .tokenizer_help = "Hugging Face's files of byte pairs, or what `trireme tokenizer train` wrote",
    .pairs_only = true,
    .byte_vocab = 256,
    .presets = presets,
    .preset = preset,
    .build = build,
    .parameters = parameters,
    .window_bytes = window_bytes,
    .rename = names,
    .positions = "wpe.weight",
    .advise = advise,
};
