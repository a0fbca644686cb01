/* `trireme train bert`: masked language modelling. */
#include "train_text.h"

static tr_module *build(const tr__language_size *s)
{
    return tr_bert(.head = TR_BERT_MASKED_LM, .vocab = s->vocab, .positions = s->context, .layers = s->layers,
                   .heads = s->heads, .dim = s->dim, .dropout = s->dropout, .seed = s->seed);
}

static tr_tensor *loss(tr_module *net, tr_tensor *x, tr_tensor *y, void *user)
{
    (void)user;
    return tr_bert_loss(net, x, NULL, NULL, y);
}

static tr_status preset(const char *name, tr__language_size *size)
{
    tr_bert_options o = {.size = sizeof o};
    tr_status status = tr_bert_preset(name, &o);
    *size = (tr__language_size){.context = o.positions, .layers = o.layers, .heads = o.heads, .dim = o.dim};
    return status;
}

/* Tables of words, places and the two types with a norm, layers, and the head: a projection, a norm, a bias. */
static int64_t parameters(const tr__language_size *s)
{
    int64_t dim = s->dim;
    return (s->vocab + s->context + 4) * dim + s->layers * (12 * dim * dim + 13 * dim) + dim * dim + 3 * dim + s->vocab;
}

/* Per token and layer queries, keys and values (3), attention's output, the inside before GELU (4), both sums and what
 * their norms give (4), each of dim floats; and the logits with their gradient. */
static double window_bytes(const tr__language_size *s)
{
    return 4.0 * s->context * ((12.0 * s->layers + 8.0) * s->dim + 2.0 * s->vocab);
}

/* Files of the whole model also hold what learned which sentence follows, the tied head's copy and a table 0, 1, …; the first
 * ones call a norm's parameters as its paper does. */
static const tr_rename names[] = {
    {"bert.pooler.*", NULL},
    {"cls.seq_relationship.*", NULL},
    {"cls.predictions.decoder.*", NULL},
    {"bert.embeddings.position_ids", NULL},
    {"*.gamma", "*.weight"},
    {"*.beta", "*.bias"},
    {NULL, NULL},
};

enum { BYTES = 256, BEGIN = BYTES, END, MASK, BYTE_VOCAB };

static tr_status masking(const tr_tokenizer *tokens, tr_masking *m)
{
    *m = (tr_masking){.begin = BEGIN, .end = END, .mask = MASK, .vocab = BYTES};
    if (!tokens) return TR_OK;
    const struct {
        const char *name;
        int32_t *id;
    } special[] = {{"[CLS]", &m->begin}, {"[SEP]", &m->end}, {"[MASK]", &m->mask}};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        *special[i].id = tr_tokenizer_id(tokens, special[i].name);
        if (*special[i].id < 0)
            return tr_fail(TR_INVALID, "the tokenizer has no %s: a masked model takes one of word pieces, such as BERT's "
                                       "vocab.txt", special[i].name);
    }
    m->vocab = tr_tokenizer_vocab(tokens);
    return TR_OK;
}

static const tr__language_preset presets[] = {
    {"nano", 32, 2000, 100, 500, 1e-3},
    {"mini", 32, 5000, 200, 200, 5e-4},
    {"base", 32, 10000, 500, 100, 1e-4},
    {"large", 32, 10000, 500, 100, 5e-5},
    {0},
};

const tr__language tr__language_bert = {
    .name = "bert",
    .title = "BERT",
    .about = "Trains a BERT to find out hidden tokens of a text, on one process or several, and keeps what it learned.",
    .tokenizer_help = "word pieces: BERT's vocab.txt or tokenizer.json, or a folder of Hugging Face's with them",
    .byte_vocab = BYTE_VOCAB,
    .presets = presets,
    .preset = preset,
    .build = build,
    .parameters = parameters,
    .window_bytes = window_bytes,
    .rename = names,
    .positions = "bert.embeddings.position_embeddings.weight",
    .masking = masking,
    .loss = loss,
};
