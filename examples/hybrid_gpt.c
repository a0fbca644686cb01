/*
 * A GPT on four ranks, a 2 x 2 mesh: tensor parallel blocks (Shoeybi et al., Megatron-LM, 2019) and data parallel copies, with
 * gradient accumulation, bf16, clipping and a cosine schedule. The ranks save one checkpoint of the whole model and optimizer,
 * which the program then loads into the same GPT on one process: it has the loss that the four ranks had.
 *
 *   ./hybrid_gpt [--device cuda] [--steps N] [FOLDER]      # FOLDER gets the checkpoint; default hybrid_gpt.run
 * The text is made: sequences that follow a rule. With fewer than 200 steps the size of the loss is not checked.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { WORDS = 16, CONTEXT = 16, DIM = 64, HEADS = 4, BLOCKS = 2, MICRO = 8, ACCUMULATE = 2, ALL = 200 };

typedef struct settings { char device[16], folder[1024]; int steps; } settings;

/* ---- The model: with a group its layers are slices of the whole layers, else plain ------------------------------- */

static tr_module *linear(tr_group *tp, bool rows, int64_t in, int64_t out)
{
    if (!tp) return tr_linear(in, out);
    return rows ? tr_row_linear(in, out, .group = tp) : tr_column_linear(in, out, .group = tp);
}

typedef struct block { tr_module *ln1, *q, *k, *v, *o, *ln2, *up, *down; int64_t heads; /* of this rank */ } block;

static tr_tensor *heads_of(const block *b, tr_module *layer, tr_tensor *x) /* [batch, seq, DIM] -> [batch, heads, seq, head] */
{
    return tr_transpose(tr_unflatten(tr_forward(layer, x), 2, TR_SHAPE(b->heads, -1)), 1, 2);
}

static tr_tensor *block_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    const block *b = tr_module_state(self);
    tr_tensor *h = tr_forward(b->ln1, inputs[0]);
    tr_tensor *seen = tr_attention(heads_of(b, b->q, h), heads_of(b, b->k, h), heads_of(b, b->v, h), .causal = true);
    tr_tensor *x = tr_add(inputs[0], tr_forward(b->o, tr_flatten(tr_transpose(seen, 1, 2), 2, 3))); /* sums over tp */
    return tr_add(x, tr_forward(b->down, tr_gelu(tr_forward(b->up, tr_forward(b->ln2, x)))));       /* likewise */
}

static tr_module *block_new(tr_group *tp)
{
    tr_module *m = tr_module_new("block", sizeof(block), block_forward);
    block *b = tr_module_state(m);
    b->heads = HEADS / (tp ? tr_world_size(tp) : 1);
    b->ln1 = tr_module_add(m, "ln1", tr_layer_norm(DIM));
    b->q = tr_module_add(m, "q", linear(tp, false, DIM, DIM)); /* its outputs are whole heads */
    b->k = tr_module_add(m, "k", linear(tp, false, DIM, DIM));
    b->v = tr_module_add(m, "v", linear(tp, false, DIM, DIM));
    b->o = tr_module_add(m, "o", linear(tp, true, DIM, DIM));
    b->ln2 = tr_module_add(m, "ln2", tr_layer_norm(DIM));
    b->up = tr_module_add(m, "up", linear(tp, false, DIM, 4 * DIM));
    b->down = tr_module_add(m, "down", linear(tp, true, 4 * DIM, DIM));
    return m;
}

typedef struct gpt { tr_module *words, *places, *blocks, *norm, *head; } gpt;

static tr_tensor *gpt_forward(tr_module *self, tr_tensor *const *inputs, int n) /* ids [batch, seq] -> [batch, seq, WORDS] */
{
    (void)n;
    const gpt *g = tr_module_state(self);
    tr_tensor *places = tr_arange(tr_size(inputs[0], 1), TR_I32, tr_device_of(inputs[0]));
    tr_tensor *x = tr_add(tr_forward(g->words, inputs[0]), tr_forward(g->places, places));
    return tr_forward(g->head, tr_forward(g->norm, tr_forward(g->blocks, x)));
}

static tr_module *gpt_new(tr_group *tp)
{
    tr_module *m = tr_module_new("gpt", sizeof(gpt), gpt_forward), *blocks[BLOCKS];
    gpt *g = tr_module_state(m);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = block_new(tp);
    g->words = tr_module_add(m, "words", tp ? tr_vocab_parallel_embedding(WORDS, DIM, .group = tp) : tr_embedding(WORDS, DIM));
    g->places = tr_module_add(m, "places", tr_embedding(CONTEXT, DIM));
    g->blocks = tr_module_add(m, "h", tr_sequential_n(blocks, BLOCKS));
    g->norm = tr_module_add(m, "norm", tr_layer_norm(DIM));
    g->head = tr_module_add(m, "head", tr_linear(DIM, WORDS));
    return m;
}

/* ---- The checkpoint: slices joined along the dimension in which they were cut ------------------------------------ */

/* Where a tensor's slices follow each other; -1: every rank has all of it. The optimizer's names begin with the parameters'. */
static int cut_along(const char *name, const tr_tensor *t)
{
    if (strncmp(name, "words.", 6) == 0 && tr_ndim(t) > 0) return 0;        /* rows */
    if (strncmp(name, "h.", 2) != 0 || tr_ndim(t) == 0) return -1;          /* the optimizer's step count is a scalar */
    const char *layer = strchr(name + 2, '.') + 1;
    if (strncmp(layer, "o.", 2) == 0 || strncmp(layer, "down.", 5) == 0) return tr_ndim(t) == 2 ? 1 : -1; /* inputs; no bias */
    return strncmp(layer, "ln", 2) == 0 ? -1 : 0;                           /* outputs of q, k, v and up */
}

static tr_tensor_list *join_slices(const tr_tensor_list *slices, tr_group *tp)
{
    TR_NO_GRAD;
    tr_tensor_list *whole = tr_list_new();
    for (int i = 0; i < tr_list_count(slices); i++) {
        tr_tensor *t = tr_list_at(slices, i);
        int dim = cut_along(tr_list_name(slices, i), t);
        TR_CHECK(tr_list_add(whole, tr_list_name(slices, i), dim < 0 ? t : tr_all_gather_op(tp, t, dim)));
    }
    return whole;
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* After words a and b comes 3 a + b + 1, modulo their number. ids: [n, CONTEXT], y: what comes next. */
static tr_tensor *make_batch(int64_t first, int n, tr_device here, tr_tensor **y)
{
    static int32_t ids[32][CONTEXT], next[32][CONTEXT];
    for (int i = 0; i < n; i++) {
        uint64_t start = (uint64_t)(first + i) * 0x9e3779b97f4a7c15u;
        int32_t a = (int32_t)(start >> 60), b = (int32_t)(start >> 56 & 15);
        for (int k = 0; k < CONTEXT; k++) {
            ids[i][k] = a;
            next[i][k] = b;
            b = (3 * a + b + 1) % WORDS;
            a = next[i][k];
        }
    }
    *y = tr_to(tr_from(next, TR_SHAPE(n, CONTEXT), .dtype = TR_I32), here);
    return tr_to(tr_from(ids, TR_SHAPE(n, CONTEXT), .dtype = TR_I32), here);
}

static double validate(tr_module *net, tr_device here)
{
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *y, *x = make_batch(1 << 20, 32, here, &y);
    return tr_item(tr_cross_entropy(tr_forward(net, x), y));
}

static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join();
    tr_mesh *mesh = tr_mesh_new(world, .dp = 2, .tp = 2);
    tr_group *dp = tr_mesh_group(mesh, TR_MESH_DP), *tp = tr_mesh_group(mesh, TR_MESH_TP);
    tr_device here;
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_module *net = gpt_new(tp);
    TR_CHECK(tr_module_to(net, here));
    tr_module *ddp = tr_ddp(net, dp);
    tr_optimizer *opt = tr_adamw(tr_parameters(net), .weight_decay = 0.1, .decay_matrices_only = true);
    for (int step = 0; step < s->steps; step++) {
        TR_SCOPE;
        double loss = 0, norm;
        tr_zero_grad(opt);
        for (int i = 0; i < ACCUMULATE; i++) { /* both tp ranks of a copy take the same part of the batch */
            int64_t part = ((int64_t)step * ACCUMULATE + i) * tr_world_size(dp) + tr_rank(dp);
            tr_tensor *y, *x = make_batch(part * MICRO, MICRO, here, &y);
            TR_CHECK(tr_ddp_sync(ddp, i == ACCUMULATE - 1)); /* the last backward averages the sums */
            TR_AUTOCAST(TR_BF16); /* to the end of the block; parameters and gradients stay f32 */
            tr_tensor *mean = tr_affine(tr_cross_entropy(tr_forward(ddp, x), y), 1.0 / ACCUMULATE, 0);
            TR_CHECK(tr_backward(mean));
            loss += tr_item(mean);
        }
        TR_CHECK(tr_clip_grad_norm(opt, 1.0, &norm)); /* of the whole model: all ranks come here */
        TR_CHECK(tr_set_lr(opt, tr_cosine_lr(step, 4e-3, s->steps, .warmup_steps = 10)));
        TR_CHECK(tr_step(opt));
        if (rank == 0 && step % 50 == 0) printf("step %3d  loss %.3f  gradient norm %.3f\n", step, loss, norm);
    }
    double loss = validate(net, here);
    tr_tensor_list *model = join_slices(tr_state_dict(net), tp), *state = join_slices(tr_optimizer_state(opt), tp);
    if (rank == 0) TR_CHECK(tr_checkpoint_save(s->folder, s->steps, model, state, .loss = &loss, .keep = 1));
    TR_CHECK(tr_mesh_leave(mesh));
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the ranks leave main() here */
    settings s = {"cpu", "hybrid_gpt.run", ALL};
    for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    if (argc > 1) snprintf(s.folder, sizeof s.folder, "%s", argv[1]);
    TR_CHECK(tr_spawn(train, 4, .argument = &s, .bytes = sizeof s, .pass_signals = true));

    char path[4096];
    double loss;
    tr_tensor_list *model, *state;
    tr_module *net = gpt_new(NULL); /* on one process, with plain layers of the same names */
    tr_optimizer *opt = tr_adamw(tr_parameters(net));
    TR_CHECK(tr_checkpoint_find_best(s.folder, path, NULL, &loss));
    TR_CHECK(tr_checkpoint_load(path, &model, &state));
    TR_CHECK(tr_load_state_dict(net, model));
    TR_CHECK(tr_optimizer_load(opt, state)); /* one process could continue the training here */
    double here = validate(net, tr_cpu(0));
    printf("validation loss %.4f on four ranks, %.4f on one process\n", loss, here);
    return fabs(here - loss) < 1e-3 && (loss < 0.5 || s.steps < ALL) ? 0 : 1;
}
