/*
 * Tensor and data parallelism on a 2 x 2 mesh, which the program starts itself: two ranks share each layer, and two such pairs
 * share the batch.
 *
 *   words ── sharded embedding ──> column linear ──> GELU ──> row linear ──> logits
 *            half of the rows      of the outputs    of them  of the inputs  the same on both ranks of a pair
 *
 * A next-word model of a language whose words follow each other by a rule, learnt by heart. Every rank also trains the whole
 * network by itself, on whole batches: both must learn the same, to rounding.
 *
 *   ./tensor_parallel [--device cuda [--backend nccl]] [--steps N]      # the ranks take the GPUs in turn; few steps: the loss is not judged
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { words = 64, dim = 32, hidden = 128, batch = 64, all_steps = 200 };

typedef struct settings {
    char device[16], backend[16];
    int steps;
} settings;

static tr_module *make_whole(void)
{
    return tr_sequential(tr_embedding(words, dim, .seed = 1), tr_linear(dim, hidden, .seed = 2), tr_activation_layer(tr_gelu),
        tr_linear(hidden, words, .seed = 3));
}

/* The same network with this rank's slices of it: the same seeds give the same weights. */
static tr_module *make_slices(tr_group *tp)
{
    return tr_sequential(tr_vocab_parallel_embedding(words, dim, .group = tp, .seed = 1),
        tr_column_linear(dim, hidden, .group = tp, .seed = 2), tr_activation_layer(tr_gelu),
        tr_row_linear(hidden, words, .group = tp, .seed = 3));
}

/* After word w comes 5 w + 3, modulo their number. All ranks make the same batch. */
static tr_tensor *make_batch(int step, tr_tensor **y)
{
    int32_t word[batch], next[batch];
    for (int i = 0; i < batch; i++) {
        word[i] = (step * 31 + i * 7) % words;
        next[i] = (5 * word[i] + 3) % words;
    }
    *y = tr_from(next, TR_SHAPE(batch), .dtype = TR_I32);
    return tr_from(word, TR_SHAPE(batch), .dtype = TR_I32);
}

/* A step with one part of the batch. */
static tr_status train_step(tr_module *net, tr_optimizer *opt, int step, int part, int parts, double *value)
{
    TR_SCOPE;
    int64_t begin = batch * part / parts, end = batch * (part + 1) / parts;
    tr_tensor *y, *x = make_batch(step, &y);
    tr_device here = tr_device_of(tr_list_at(tr_parameters(net), 0));
    x = tr_to(x, here);
    y = tr_to(y, here);
    tr_tensor *loss = tr_cross_entropy(tr_forward(net, tr_slice(x, 0, begin, end)), tr_slice(y, 0, begin, end));
    tr_zero_grad(opt);
    tr_status status = tr_backward(loss);
    *value = tr_item(loss);
    return status == TR_OK ? tr_step(opt) : status;
}

static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join(.backend = s->backend);
    tr_mesh *mesh = tr_mesh_new(world, .dp = 2, .tp = 2);
    tr_group *dp = tr_mesh_group(mesh, TR_MESH_DP), *tp = tr_mesh_group(mesh, TR_MESH_TP);
    tr_device here;
    tr_status status = tr_group_device_named(world, s->device, &here);
    tr_module *net = make_slices(tp), *whole = make_whole();
    if (status == TR_OK) status = tr_module_to(net, here);
    if (status == TR_OK) status = tr_module_to(whole, here);
    if (status != TR_OK) return status;
    tr_module *ddp = tr_ddp(net, dp);
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .lr = 1e-2), *opt_whole = tr_adamw(tr_parameters(whole), .lr = 1e-2);
    status = tr_status_of(opt);
    double loss = 0, expected = 0, difference = 0;
    for (int step = 0; step < s->steps && status == TR_OK; step++) {
        status = train_step(ddp, opt, step, tr_rank(dp), tr_world_size(dp), &loss);
        if (status == TR_OK) status = train_step(whole, opt_whole, step, 0, 1, &expected);
        if (status == TR_OK) status = tr_all_reduce(dp, &loss, 1, .dtype = TR_F64, .op = TR_AVG);
        difference = fmax(difference, fabs(loss - expected));
        if (rank == 0 && step % 50 == 0) printf("step %3d  loss %.4f, of the whole network %.4f\n", step, loss, expected);
    }
    if (status != TR_OK) return status;
    if (rank == 0)
        printf("loss %.4f at the end, never further than %.1e from the whole network's; rank 0 has %lld of %lld weights\n", loss,
            difference, (long long)tr_list_numel(tr_parameters(net)), (long long)tr_list_numel(tr_parameters(whole)));
    if (!(loss < 0.05 || s->steps < all_steps) || !(difference < 1e-3))
        return tr_fail(TR_STATE, "a loss of %g, a difference of %g", loss, difference);
    status = tr_mesh_leave(mesh);
    return status == TR_OK ? tr_leave(world) : status;
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the ranks leave main() here */
    settings s = {"cpu", "native", all_steps};
    for (; argc > 1; argc -= 2, argv += 2) {
        if (argc > 2 && strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (argc > 2 && strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (argc > 2 && strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "usage: tensor_parallel [--device NAME] [--backend NAME] [--steps N]\n"), 2;
    }
    TR_CHECK(tr_spawn(train, 4, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
