/*
 * Recurrent layers with the names and the start of PyTorch's: RNN, LSTM (Hochreiter & Schmidhuber 1997) and GRU (Cho et al. 2014).
 *
 * The inputs of all steps go through one gemm; what is left for each step is the gemm with the hidden state:
 *
 *   projected = x W_ih^T + b_ih     [batch, seq, gates * hidden]
 *   gates_t   = h W_hh^T + b_hh     [batch, gates * hidden]
 *
 *   RNN   h = f(p + g), f: tanh or relu
 *   LSTM  i, f, g, o = parts of p + g: c = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c)
 *   GRU   r, z = sigmoid(p + g) of two parts, n = tanh(p_n + r g_n): h = n + z (h - n)
 */
#include "nn/module.h"

#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_LAYERS = 16, MOST_GATES = 4 };

/* The parameters of a layer in one direction. */
typedef struct cell {
    tr_tensor *weight_ih, *weight_hh; /* [gates*hidden, in], [gates*hidden, hidden] */
    tr_tensor *bias_ih, *bias_hh;     /* [gates*hidden], or NULL */
} cell;

typedef struct recurrent {
    enum { RNN, LSTM, GRU } kind;
    bool relu;
    int64_t input, hidden;
    int layers, directions;
    cell cells[MOST_LAYERS][2];
    tr_module *drops[MOST_LAYERS]; /* behind each layer but the last; NULL: none */
} recurrent;

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* projected: [batch, gates*hidden]; *h, *c: [batch, hidden], become the next ones. */
static void step(const recurrent *r, const cell *k, tr_tensor *projected, tr_tensor **h, tr_tensor **c)
{
    tr_tensor *part[MOST_GATES], *from_input[MOST_GATES];
    if (r->kind == GRU) {
        tr_tensor *gates = tr_linear_op(*h, k->weight_hh, .bias = k->bias_hh);
        if (tr_split(gates, 3, 1, part) != TR_OK || tr_split(projected, 3, 1, from_input) != TR_OK) {
            *h = tr__tensor_failed();
            return;
        }
        tr_tensor *reset = tr_sigmoid(tr_add(from_input[0], part[0])), *keep = tr_sigmoid(tr_add(from_input[1], part[1]));
        tr_tensor *fresh = tr_tanh(tr_add(from_input[2], tr_mul(reset, part[2])));
        *h = tr_add(fresh, tr_mul(keep, tr_sub(*h, fresh)));
        return;
    }
    tr_tensor *gates = tr_linear_op(*h, k->weight_hh, .bias = k->bias_hh, .residual = projected);
    if (r->kind == RNN) {
        *h = r->relu ? tr_relu(gates) : tr_tanh(gates);
        return;
    }
    if (tr_split(gates, 4, 1, part) != TR_OK) {
        *h = *c = tr__tensor_failed();
        return;
    }
    *c = tr_add(tr_mul(tr_sigmoid(part[1]), *c), tr_mul(tr_sigmoid(part[0]), tr_tanh(part[2])));
    *h = tr_mul(tr_sigmoid(part[3]), tr_tanh(*c));
}

/* One layer in one direction. x: [batch, seq, in] -> [batch, seq, hidden]; *h and *c become those of the last step. */
static tr_tensor *run_cell(const recurrent *r, const cell *k, tr_tensor *x, bool backwards, tr_tensor **h, tr_tensor **c)
{
    int64_t seq = tr_size(x, 1);
    tr_tensor *projected = tr_linear_op(x, k->weight_ih, .bias = k->bias_ih);
    tr_tensor **outputs = malloc((size_t)seq * sizeof(tr_tensor *));
    if (!outputs) return tr_tensor_fail(TR_NO_MEMORY, "out of memory for %" PRId64 " steps", seq);
    for (int64_t i = 0; i < seq; i++) {
        int64_t t = backwards ? seq - 1 - i : i;
        step(r, k, tr_select(projected, 1, t), h, c);
        outputs[t] = *h;
    }
    tr_tensor *y = tr_stack(outputs, (int)seq, 1);
    free(outputs);
    return y;
}

/* ---- The whole ---------------------------------------------------------------------------------------------------- */

/* NULL, or what is wrong with x: [batch, seq, in] or a state, [layers*directions, batch, hidden]. */
static tr_tensor *check(const tr_module *self, tr_tensor *const *inputs, int n)
{
    const recurrent *r = self->state;
    int most = r->kind == LSTM ? 3 : 2;
    if (n < 1 || n > most || !inputs[0] || (most == 3 && n == 2))
        return tr_tensor_fail(TR_INVALID, "%s: it takes x, or x and %s, not %d inputs", self->name,
            most == 3 ? "the states h and c" : "a state h", n >= 1 && !inputs[0] ? 0 : n);
    tr_tensor *x = inputs[0];
    if (tr_ndim(x) != 3 || tr_size(x, 2) != r->input || tr_size(x, 1) < 1)
        return tr_tensor_fail(TR_SHAPE, "%s: x is %s: it must be [batch, seq, %" PRId64 "] with a step or more", self->name,
            TR__TEXT(tr_shape_of(x)), r->input);
    tr_shape state = TR_SHAPE(r->layers * r->directions, tr_size(x, 0), r->hidden);
    for (int i = 1; i < n; i++)
        if (inputs[i] && !tr__shape_equal(tr_shape_of(inputs[i]), state))
            return tr_tensor_fail(TR_SHAPE, "%s: the state %s is %s: it must be %s", self->name, i == 1 ? "h" : "c",
                TR__TEXT(tr_shape_of(inputs[i])), TR__TEXT(state));
    return NULL;
}

/* State i of all layers and directions, or zeros like x: [batch, hidden]. */
static tr_tensor *state_at(const recurrent *r, tr_tensor *states, int i, const tr_tensor *x)
{
    if (states) return tr_select(states, 0, i);
    return tr_zeros(TR_SHAPE(tr_size(x, 0), r->hidden), .dtype = tr_dtype_of(x), .device = tr_device_of(x));
}

/* x: [batch, seq, in], h, c?: [layers*directions, batch, hidden] -> [batch, seq, directions*hidden], h, c */
static tr_status recurrent_forward(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    const recurrent *r = self->state;
    TR__TRY(tr_status_of(check(self, inputs, n)));
    tr_tensor *x = inputs[0], *last_h[2 * MOST_LAYERS], *last_c[2 * MOST_LAYERS];
    for (int l = 0; l < r->layers; l++) {
        tr_tensor *sides[2];
        for (int d = 0; d < r->directions; d++) {
            int at = l * r->directions + d;
            last_h[at] = state_at(r, n > 1 ? inputs[1] : NULL, at, x);
            last_c[at] = r->kind == LSTM ? state_at(r, n > 2 ? inputs[2] : NULL, at, x) : NULL;
            sides[d] = run_cell(r, &r->cells[l][d], x, d == 1, &last_h[at], &last_c[at]);
        }
        x = r->directions == 2 ? tr_cat(sides, 2, 2) : sides[0];
        if (r->drops[l]) x = tr_forward(r->drops[l], x);
        outputs[0] = x; /* also in error: it tells the way to the dropout that failed */
        TR__TRY(tr_status_of(x));
    }
    outputs[1] = tr_stack(last_h, r->layers * r->directions, 0);
    if (r->kind == LSTM) outputs[2] = tr_stack(last_c, r->layers * r->directions, 0);
    return TR_OK;
}

static tr_status check_options(const char *name, int kind, const tr_recurrent_options *o)
{
    if (o->input < 1 || o->hidden < 1)
        return tr__fail(TR_INVALID, "%s: input and hidden must be positive, not %" PRId64 " and %" PRId64, name, o->input, o->hidden);
    if (o->layers < 0 || o->layers > MOST_LAYERS)
        return tr__fail(TR_INVALID, "%s: layers must be 1 to %d, not %d", name, MOST_LAYERS, o->layers);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tr__fail(TR_INVALID, "%s: dropout must be in [0, 1), it is %g", name, o->dropout);
    if (o->relu && kind != RNN) return tr__fail(TR_INVALID, "%s: .relu is an option of tr_rnn() alone", name);
    return TR_OK;
}

static tr_module *recurrent_new(const char *name, int kind, int gates, const tr_recurrent_options *o)
{
    if (check_options(name, kind, o) != TR_OK) return tr__object_failed(&tr__module_type);
    TR_SCOPE;
    tr_module *module = tr_module_new_many(name, sizeof(recurrent), kind == LSTM ? 3 : 2, recurrent_forward);
    recurrent *r = tr_module_state(module);
    if (!r) return tr_escape(module);
    r->kind = kind;
    r->relu = o->relu;
    r->input = o->input;
    r->hidden = o->hidden;
    r->layers = o->layers ? o->layers : 1;
    r->directions = o->bidirectional ? 2 : 1;
    tr_module_detail(module, "layers %d, directions %d, dropout %.9g%s", r->layers, r->directions, o->dropout,
        r->relu ? ", relu" : "");
    uint64_t seed = tr__seed_of(o, o->seed);
    double bound = 1 / sqrt((double)o->hidden);
    uint64_t at = 0;
    for (int l = 0; l < r->layers; l++)
        for (int d = 0; d < r->directions; d++) {
            cell *k = &r->cells[l][d];
            const struct {
                const char *name;
                tr_tensor **place;
                tr_shape shape;
            } parts[] = {
                {"weight_ih", &k->weight_ih, TR_SHAPE(gates * o->hidden, l ? r->directions * o->hidden : o->input)},
                {"weight_hh", &k->weight_hh, TR_SHAPE(gates * o->hidden, o->hidden)},
                {"bias_ih", &k->bias_ih, TR_SHAPE(gates * o->hidden)},
                {"bias_hh", &k->bias_hh, TR_SHAPE(gates * o->hidden)},
            };
            for (int p = 0; p < (o->no_bias ? 2 : 4); p++) {
                char path[48];
                snprintf(path, sizeof path, "%s_l%d%s", parts[p].name, l, d ? "_reverse" : "");
                *parts[p].place = tr_module_parameter(module, path,
                    tr__init_uniform(parts[p].shape, o->dtype, tr__mix(seed, at++), bound));
            }
        }
    for (int l = 0; l + 1 < r->layers && o->dropout > 0; l++) {
        char path[48];
        snprintf(path, sizeof path, "dropout_l%d", l);
        r->drops[l] = tr_module_add(module, path, tr_dropout_layer(o->dropout));
    }
    return tr_escape(module);
}

tr_module *tr_rnn_with(const tr_recurrent_options *options)
{
    return recurrent_new("rnn", RNN, 1, options);
}

tr_module *tr_lstm_with(const tr_recurrent_options *options)
{
    return recurrent_new("lstm", LSTM, 4, options);
}

tr_module *tr_gru_with(const tr_recurrent_options *options)
{
    return recurrent_new("gru", GRU, 3, options);
}
