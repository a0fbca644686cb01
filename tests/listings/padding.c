/* docs/data.md: samples of different lengths, padded by a function of the program's own. A GRU learns whether a sequence's
 * last token is even. */
#include <trireme/trireme.h>

#include <stdio.h>

enum { TOKENS = 4, WIDTH = 16 };
static int64_t pad_token = TOKENS;

/* 2 to 9 tokens at random. */
static tr_status sequence(const tr_sample_call *call, tr_sample *out)
{
    int64_t ids[9], n = 2 + call->index % 8;
    tr_tensor *drawn = tr_cast(tr_affine(tr_rand((uint64_t)call->index, TR_SHAPE(9)), TOKENS, 0), TR_I64);
    tr_status status = tr_copy_out(drawn, ids, sizeof ids);
    out->x = tr_from(ids, TR_SHAPE(n), .dtype = TR_I64);
    out->y = tr_scalar(ids[n - 1] % 2 == 0, TR_I64);
    return status;
}

/* Samples x: i64 [any length], y: i64, a scalar -> x: [count, longest], with the token *user behind the shorter ones, y: [count] */
static tr_status pad(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < count; i++)
        if (tr_size(samples[i].x, 0) > longest) longest = tr_size(samples[i].x, 0);
    batch->x = tr_full((double)*(int64_t *)user, TR_SHAPE(count, longest), .dtype = TR_I64);
    batch->y = tr_empty(TR_SHAPE(count), .dtype = TR_I64);
    for (int64_t i = 0; i < count; i++) {
        tr_tensor *row = tr_slice(tr_select(batch->x, 0, i), 0, 0, tr_size(samples[i].x, 0)); /* a view */
        tr_status status = tr_copy_into(row, samples[i].x);
        if (status == TR_OK) status = tr_copy_into(tr_select(batch->y, 0, i), samples[i].y);
        if (status != TR_OK) return status;
    }
    return TR_OK;
}

typedef struct reader {
    tr_module *tokens, *gru, *head;
} reader;

/* ids: [batch, seq] -> [batch, 2], from the mean of the states at tokens */
static tr_tensor *read_all(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const reader *r = tr_module_state(self);
    tr_tensor *is_token = tr_cast(tr_not_equal(inputs[0], tr_scalar((double)pad_token, TR_I64)), TR_F32);
    tr_tensor *states = tr_forward(r->gru, tr_forward(r->tokens, inputs[0])); /* [batch, seq, 2 WIDTH] */
    tr_tensor *sum = tr_sum(tr_mul(states, tr_unsqueeze(is_token, -1)), 1);
    return tr_forward(r->head, tr_div(sum, tr_sum(is_token, 1, .keep = true)));
}

int main(void)
{
    tr_dataset *set = tr_dataset_new(1000, sequence, .name = "sequences");
    tr_loader *loader = tr_loader_new(set, .batch = 50, .shuffle = true, .workers = 2, .collate = pad, .user = &pad_token);
    tr_module *net = tr_module_new("reader", sizeof(reader), read_all);
    reader *r = tr_module_state(net);
    r->tokens = tr_module_add(net, "tokens", tr_embedding(TOKENS + 1, WIDTH, .seed = 1));
    r->gru = tr_module_add(net, "gru", tr_gru(WIDTH, WIDTH, .bidirectional = true, .seed = 2));
    r->head = tr_module_add(net, "head", tr_linear(2 * WIDTH, 2, .seed = 3));
    tr_optimizer *opt = tr_adam(tr_parameters(net), .lr = 1e-2);
    tr_score score = {0};
    for (int epoch = 0; epoch < 20 && score.accuracy < 0.95; epoch++) {
        tr_batch b;
        tr_status s;
        while ((s = tr_loader_next(loader, &b)) == TR_OK) {
            TR_SCOPE;
            tr_zero_grad(opt);
            TR_CHECK(tr_backward(tr_cross_entropy(tr_forward(net, b.x), b.y)));
            TR_CHECK(tr_step(opt));
        }
        TR_CHECK_END(s);
        TR_CHECK(tr_evaluate(net, loader, .score = &score));
        printf("epoch %d: %.1f %% right\n", epoch, 100 * score.accuracy);
    }
    return score.accuracy >= 0.95 ? 0 : 1;
}
