/*
 * A recurrent network whose embedding table lives on another worker: the trainer sends numbers of words and gets their
 * vectors; the gradients go back, and the table's rows are updated where they are. The LSTM (Hochreiter & Schmidhuber
 * 1997) is a module of this program's own.
 *
 * The task: sentences of filler words with one keyword somewhere; which one was it? The network learns what it learns
 * in one process, to rounding. `./rnn_remote_embedding [--device cuda] [--steps N]`
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { vocabulary = 500, keywords = 8, words = 12, dim = 16, hidden = 32, batch = 64, all_steps = 120 };

static tr_device here; /* where this process computes */

typedef struct settings {
    char device[16];
    int steps;
} settings;

/* ---- The network ------------------------------------------------------------------------------------------------ */

/* Made on the other worker, where it stays: the caller gets a reference. */
static void *make_table(void)
{
    tr_module *made = tr_embedding(vocabulary, dim, .seed = 1);
    TR_CHECK(tr_module_to(made, here));
    return made;
}
TR_RPC(make_table, RETURNS(OBJECT));

typedef struct lstm {
    tr_module *input, *recurrent; /* both to the four gates */
} lstm;

/* x: [batch, words, dim] -> what it remembers at the end: [batch, hidden] */
static tr_tensor *lstm_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    if (n != 1) return tr_tensor_fail(TR_INVALID, "lstm: %d inputs, not 1", n);
    const lstm *l = tr_module_state(self);
    tr_tensor *x = tr_forward(l->input, inputs[0]); /* [batch, words, 4*hidden]: of all words in one product */
    int64_t rows = tr_size(x, 0);
    tr_tensor *h = tr_zeros(TR_SHAPE(rows, hidden), .device = here), *c = tr_zeros(TR_SHAPE(rows, hidden), .device = here);
    tr_tensor *gates[4] = {NULL};
    for (int t = 0; t < tr_size(x, 1); t++) {
        tr_tensor *now = tr_select(x, 1, t);
        tr_tensor *all = tr_forward(l->recurrent, h, now);
        if (tr_split(all, 4, 1, gates) != TR_OK) return all; /* in, forget, cell, out */
        tr_tensor *kept = tr_mul(tr_sigmoid(gates[1]), c), *fresh = tr_mul(tr_sigmoid(gates[0]), tr_tanh(gates[2]));
        c = tr_add(kept, fresh);
        h = tr_mul(tr_sigmoid(gates[3]), tr_tanh(c));
    }
    return h;
}

static tr_module *make_lstm(void)
{
    tr_module *self = tr_module_new("lstm", sizeof(lstm), lstm_forward);
    lstm *l = tr_module_state(self);
    l->input = tr_module_add(self, "input", tr_linear(dim, 4 * hidden, .seed = 2));
    l->recurrent = tr_module_add(self, "recurrent", tr_linear(hidden, 4 * hidden, .no_bias = true, .seed = 3));
    return self;
}

static tr_module *make_net(tr_module *table)
{
    tr_module *recurrent = make_lstm(), *out = tr_linear(hidden, keywords, .seed = 4);
    TR_CHECK(tr_module_to(recurrent, here));
    TR_CHECK(tr_module_to(out, here));
    return tr_sequential(table, recurrent, out);
}

/* ---- Training --------------------------------------------------------------------------------------------------- */

/* The sentences of a step: [batch, words], and which keyword is in them. y: [batch] */
static tr_tensor *make_sentences(int step, tr_tensor **y)
{
    float random[batch][words + 2];
    int32_t ids[batch][words], key[batch];
    TR_CHECK(tr_copy_out(tr_rand((uint64_t)step, TR_SHAPE(batch, words + 2)), random, sizeof random));
    for (int i = 0; i < batch; i++) {
        for (int k = 0; k < words; k++)
            ids[i][k] = keywords + (int32_t)((double)random[i][k] * (vocabulary - keywords));
        key[i] = (int32_t)((double)random[i][words] * keywords);
        ids[i][(int)((double)random[i][words + 1] * words)] = key[i];
    }
    *y = tr_to(tr_from(key, TR_SHAPE(batch), .dtype = TR_I32), here);
    return tr_to(tr_from(ids, TR_SHAPE(batch, words), .dtype = TR_I32), here);
}

static tr_tensor *loss_of(tr_module *net, int step)
{
    tr_tensor *y, *x = make_sentences(step, &y);
    return tr_cross_entropy(tr_forward(net, x), y);
}

static void remote_step(tr_rpc *rpc, tr_module *net, tr_dist_optimizer *optimizer, int step)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    TR_CHECK(tr_dist_backward(context, loss_of(net, step)));
    TR_CHECK(tr_dist_step(optimizer, context));
}

static void local_step(tr_module *net, tr_optimizer *optimizer, int step)
{
    TR_SCOPE;
    tr_zero_grad(optimizer);
    TR_CHECK(tr_backward(loss_of(net, step)));
    TR_CHECK(tr_step(optimizer));
}

/* On sentences that it has not learned from. */
static double measure(tr_module *net)
{
    enum { rounds = 8 };
    TR_SCOPE;
    TR_NO_GRAD;
    int correct = 0;
    for (int round = 0; round < rounds; round++) {
        int64_t said[batch];
        int32_t right[batch];
        tr_tensor *y, *x = make_sentences(all_steps + round, &y);
        TR_CHECK(tr_copy_out(tr_argmax(tr_forward(net, x), 1), said, sizeof said));
        TR_CHECK(tr_copy_out(y, right, sizeof right));
        for (int i = 0; i < batch; i++) correct += said[i] == right[i];
    }
    return (double)correct / (rounds * batch);
}

/* How far the weights that the references lead to are from those of a network in this process. */
static double distance(tr_rref *const *there, tr_tensor_list *own)
{
    TR_SCOPE;
    TR_NO_GRAD;
    double difference = 0;
    for (int i = 0; i < tr_list_count(own); i++)
        difference += tr_item(tr_max(tr_abs(tr_sub(tr_future_tensor(tr_rref_to_here(there[i])), tr_list_at(own, i)))));
    return difference;
}

static tr_status train(tr_rpc *rpc, int steps)
{
    TR_SCOPE;
    tr_module *net = make_net(tr_remote_module(tr_remote(rpc, "table", "make_table"))), *twin = make_net(make_table());
    tr_rref *parameters[8]; /* the table's, and those that are here */
    int n = tr_dist_parameters(rpc, net, parameters, 8);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_ADAM(.lr = 0.01));
    tr_optimizer *twin_optimizer = tr_adam(tr_parameters(twin), .lr = 0.01);
    for (int step = 0; step < steps; step++) {
        remote_step(rpc, net, optimizer, step);
        local_step(twin, twin_optimizer, step);
    }
    double accuracy = measure(net), difference = distance(parameters, tr_parameters(twin));
    printf("accuracy on other sentences: %.1f %%\n", 100 * accuracy);
    printf("weights differ from those of one process by %.1e\n", difference);
    if ((accuracy >= 0.95 || steps < all_steps) && difference < 1e-3) return TR_OK;
    return tr_fail(TR_STATE, "an accuracy of %.3f, weights differ by %g", accuracy, difference);
}

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join();
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = rank ? "table" : "trainer");
    TR_CHECK(tr_dist_start(rpc));
    TR_CHECK(tr_rpc_register(rpc, &make_table_rpc));
    TR_CHECK(tr_barrier(world)); /* all can be called */
    if (rank == 0) {
        tr_status status = train(rpc, s->steps);
        if (status != TR_OK) return status;
    }
    TR_CHECK(tr_rpc_stop(rpc)); /* serves until both have called it */
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", all_steps};
    for (; argc > 1; argc -= 2, argv += 2) {
        if (argc > 2 && strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (argc > 2 && strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "usage: rnn_remote_embedding [--device NAME] [--steps N]\n"), 2;
    }
    TR_CHECK(tr_spawn(work, 2, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
