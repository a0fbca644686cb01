/*
 * A network in two halves on two devices of one process, in two ways, and on one device for comparison:
 *
 *   one       all of it on cpu:0
 *   split     activations go from cpu:0 to cpu:1 by tr_to(), and gradients back; one device works at a time
 *   pipeline  the halves are stages of a pipeline: the batch goes through in micro-batches, and both devices work; by the
 *             schedules 1F1B and GPipe
 *
 * All learn the same, to rounding. The data: ten classes, each a random pattern under noise.
 *
 *   ./model_split [--device cuda] [--steps N]      # on cuda:0 and cuda:1; after a few steps the loss is not judged
 */
#define _POSIX_C_SOURCE 200809L /* setenv(), also with -std=c11 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { classes = 10, features = 64, batch = 64, all_steps = 150 };

/* ---- The network in halves ------------------------------------------------------------------------------------------ */

typedef struct halves {
    tr_module *half[2];
} halves;

/* x: [batch, features] -> [batch, classes], on the second half's device */
static tr_tensor *halves_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const halves *h = tr_module_state(self);
    tr_device second = tr_device_of(tr_list_at(tr_parameters(h->half[1]), 0));
    return tr_forward(h->half[1], tr_to(tr_forward(h->half[0], inputs[0]), second));
}

static tr_module *make_net(tr_device first, tr_device second)
{
    tr_module *net = tr_module_new("halves", sizeof(halves), halves_forward);
    halves *h = tr_module_state(net);
    h->half[0] = tr_sequential(tr_linear(features, 128, .seed = 1), tr_activation_layer(tr_gelu), tr_linear(128, 128, .seed = 2));
    h->half[1] = tr_sequential(tr_activation_layer(tr_gelu), tr_linear(128, classes, .seed = 3));
    tr_module_add(net, "first", h->half[0]);
    tr_module_add(net, "second", h->half[1]);
    TR_CHECK(tr_module_to(h->half[0], first));
    TR_CHECK(tr_module_to(h->half[1], second));
    return net;
}

/* ---- Training ------------------------------------------------------------------------------------------------------- */

static tr_tensor *mean_loss(tr_tensor *output, tr_tensor *y, void *user)
{
    (void)user;
    return tr_cross_entropy(output, tr_to(y, tr_device_of(output)));
}

/* The batch of a step: x: [batch, features], y: [batch] */
static tr_tensor *make_batch(int step, tr_tensor **y)
{
    tr_tensor *patterns = tr_randn(7, TR_SHAPE(classes, features));
    tr_tensor *noise = tr_randn((uint64_t)(100 + step), TR_SHAPE(batch, features));
    *y = tr_argmax(tr_rand((uint64_t)(9000 + step), TR_SHAPE(batch, classes)), 1);
    return tr_add(tr_embedding_op(*y, patterns), noise);
}

/* Trains the network, through the pipeline unless that is NULL, and gives the last step's loss. */
static double train(tr_module *net, tr_pipeline *pipe, int steps)
{
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-3); /* over both devices */
    double value = 0;
    for (int step = 0; step < steps; step++) {
        TR_SCOPE;
        tr_tensor *y, *x = make_batch(step, &y);
        tr_zero_grad(opt);
        if (pipe) {
            TR_CHECK(tr_pipeline_step(pipe, x, y, &value));
        } else {
            tr_tensor *there = tr_to(x, tr_device_of(tr_list_at(tr_parameters(net), 0)));
            tr_tensor *loss = mean_loss(tr_forward(net, there), y, NULL);
            TR_CHECK(tr_backward(loss));
            value = tr_item(loss);
        }
        TR_CHECK(tr_step(opt));
    }
    return value;
}

/* The greatest difference between two networks' weights. */
static double distance(tr_module *a, tr_module *b)
{
    TR_NO_GRAD;
    tr_tensor_list *x = tr_parameters(a), *y = tr_parameters(b);
    double difference = 0;
    for (int i = 0; i < tr_list_count(x); i++) {
        tr_tensor *there = tr_to(tr_list_at(y, i), tr_device_of(tr_list_at(x, i)));
        difference += tr_item(tr_max(tr_abs(tr_sub(tr_list_at(x, i), there))));
    }
    return difference;
}

int main(int argc, char **argv)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1); /* cpu:0 and cpu:1, each with half of the cores; before the first use of one */
    const char *kind = "cpu";
    int steps = all_steps;
    for (; argc > 1; argc -= 2, argv += 2) {
        if (argc > 2 && strcmp(argv[1], "--device") == 0) kind = argv[2];
        else if (argc > 2 && strcmp(argv[1], "--steps") == 0) steps = atoi(argv[2]);
        else return fprintf(stderr, "usage: model_split [--device NAME] [--steps N]\n"), 2;
    }
    tr_device first = {.index = 0}, second = {.index = 1};
    TR_CHECK(tr_device_kind_named(kind, &first.kind));
    second.kind = first.kind;
    tr_module *one = make_net(first, first), *split = make_net(first, second);
    double expected = train(one, NULL, steps), by_hand = train(split, NULL, steps), difference = distance(split, one);
    printf("loss on one device %.4f, split over two %.4f\n", expected, by_hand);
    for (tr_pipeline_schedule schedule = TR_1F1B; schedule <= TR_GPIPE; schedule++) {
        tr_module *staged = make_net(first, second);
        const halves *stages = tr_module_state(staged);
        tr_pipeline *pipe = tr_pipeline_new(stages->half, 2, .loss = mean_loss, .micro_batches = 4, .schedule = schedule);
        printf("as a pipeline by %s %.4f\n", schedule == TR_1F1B ? "1F1B" : "GPipe", train(staged, pipe, steps));
        difference += distance(staged, one);
    }
    printf("weights differ from those of one device by %.1e in all\n", difference);
    return (expected < 0.1 || steps < all_steps) && difference < 1e-3 ? 0 : 1;
}
