/* docs/modules.md: a Transformer learns to write words backwards. */
#include <trireme/trireme.h>

#include <stdio.h>

enum { LETTERS = 8, BEGIN = LETTERS, VOCAB, LENGTH = 6, BATCH = 64, DIM = 32 };

typedef struct writer {
    tr_module *letters, *places, *transformer, *head;
} writer;

/* ids: [batch, LENGTH] -> [batch, LENGTH, DIM] */
static tr_tensor *embed(const writer *w, tr_tensor *ids)
{
    tr_tensor *places = tr_arange(LENGTH, TR_I32, tr_device_of(ids));
    return tr_add(tr_forward(w->letters, ids), tr_forward(w->places, places));
}

/* the word, and what has been written with BEGIN in front: [batch, LENGTH] each -> what comes next: [batch, LENGTH, VOCAB] */
static tr_tensor *writer_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    const writer *w = tr_module_state(self);
    if (n != 2) return tr_tensor_fail(TR_INVALID, "writer: it takes a word and what has been written, not %d inputs", n);
    return tr_forward(w->head, tr_forward(w->transformer, embed(w, inputs[0]), embed(w, inputs[1])));
}

static tr_module *writer_new(void)
{
    tr_module *m = tr_module_new("writer", sizeof(writer), writer_forward);
    writer *w = tr_module_state(m);
    if (!w) return m;
    w->letters = tr_module_add(m, "letters", tr_embedding(VOCAB, DIM, .seed = 1));
    w->places = tr_module_add(m, "places", tr_embedding(LENGTH, DIM, .seed = 2));
    w->transformer = tr_module_add(m, "transformer",
        tr_transformer(.dim = DIM, .heads = 4, .layers = 1, .inner = 64, .causal = true, .norm_first = true, .seed = 3));
    w->head = tr_module_add(m, "head", tr_linear(DIM, VOCAB, .seed = 4));
    return m;
}

/* Words at random, and for each what is written before a place and at it. */
static void make_batch(unsigned *state, int word[BATCH][LENGTH], int before[BATCH][LENGTH], int64_t at[BATCH][LENGTH])
{
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < LENGTH; k++) {
            *state = *state * 1664525u + 1013904223u;
            word[i][k] = (int)(*state >> 16) % LETTERS;
        }
        for (int k = 0; k < LENGTH; k++) {
            at[i][k] = word[i][LENGTH - 1 - k];
            before[i][k] = k ? word[i][LENGTH - k] : BEGIN;
        }
    }
}

static tr_tensor *integers(const void *values, int64_t rows, tr_dtype dtype)
{
    return tr_from(values, TR_SHAPE(rows, LENGTH), .dtype = dtype);
}

/* One letter after the other, the likeliest each time. */
static void write_backwards(tr_module *net, const int word[LENGTH], int out[LENGTH])
{
    int before[LENGTH] = {BEGIN};
    for (int k = 0; k < LENGTH; k++) {
        TR_SCOPE;
        TR_NO_GRAD;
        tr_tensor *next = tr_forward(net, integers(word, 1, TR_I32), integers(before, 1, TR_I32)); /* [1, LENGTH, VOCAB] */
        out[k] = (int)tr_item(tr_argmax(tr_slice(next, 1, k, k + 1), 2));
        if (k + 1 < LENGTH) before[k + 1] = out[k];
    }
}

int main(void)
{
    static int word[BATCH][LENGTH], before[BATCH][LENGTH];
    static int64_t at[BATCH][LENGTH];
    tr_module *net = writer_new();
    tr_optimizer *opt = tr_adam(tr_parameters(net), .lr = 5e-3);
    unsigned state = 1;
    double loss_value = 10;
    int step = 0;
    for (; step < 1000 && loss_value > 0.05; step++) {
        TR_SCOPE;
        make_batch(&state, word, before, at);
        tr_tensor *logits = tr_forward(net, integers(word, BATCH, TR_I32), integers(before, BATCH, TR_I32));
        tr_tensor *loss = tr_cross_entropy(logits, integers(at, BATCH, TR_I64));
        tr_zero_grad(opt);
        TR_CHECK(tr_backward(loss));
        TR_CHECK(tr_step(opt));
        loss_value = tr_item(loss);
    }
    int right = 0, out[LENGTH];
    make_batch(&state, word, before, at);
    write_backwards(net, word[0], out);
    for (int k = 0; k < LENGTH; k++) right += out[k] == word[0][LENGTH - 1 - k];
    printf("loss %.3f after %d steps; %d of %d letters right\n", loss_value, step, right, LENGTH);
    return loss_value <= 0.05 && right == LENGTH ? 0 : 1;
}
