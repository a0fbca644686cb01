/*
 * A generative adversarial network (Goodfellow et al., 2014) of convolutions (DCGAN: Radford et al., 2015) on two ranks: two nets
 * with an optimizer each, both under DDP, that train against each other.
 *
 *   ./gan [--device cuda [--backend nccl]] [--steps N] [RANKS [FOLDER]]
 *
 * FOLDER has MNIST's t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (or .gz). Without it the images are made: four patterns
 * under noise. Rank 0 writes 64 drawn images to samples.pgm. On "cuda" the ranks take the GPUs in turn. With another
 * --steps the result is not checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, PATTERNS = 4, LATENT = 32, BATCH = 64, ALL = 300, GRID = 8, DRAWN = GRID * GRID };

typedef struct settings {
    char folder[1024]; /* "": made images */
    char device[16], backend[16];
    int steps;
} settings;

/* ---- The images: grey values from -1 to 1 ------------------------------------------------------------------------ */

/* Squares of 4 by 4: [1, 28, 28] */
static tr_tensor *pattern(int64_t number)
{
    tr_tensor *squares = tr_randn((uint64_t)number + 1, TR_SHAPE(1, 7, 1, 7, 1));
    return tr_reshape(tr_expand(squares, TR_SHAPE(1, 7, 4, 7, 4)), TR_SHAPE(1, SIDE, SIDE));
}

static tr_status make_image(const tr_sample_call *call, tr_sample *out)
{
    tr_tensor *noise = tr_randn((uint64_t)(1000 + call->index), TR_SHAPE(1, SIDE, SIDE));
    out->x = tr_tanh(tr_affine(tr_add(pattern(call->index % PATTERNS), tr_affine(noise, 0.2, 0)), 2, 0));
    return tr_status_of(out->x);
}

static tr_status to_signs(const tr_sample_call *call, tr_sample *sample) /* MNIST's are from 0 to 1 */
{
    (void)call;
    sample->x = tr_affine(sample->x, 2, -1);
    return tr_status_of(sample->x);
}

/* ---- The nets ---------------------------------------------------------------------------------------------------- */

/* [batch, LATENT] -> images [batch, 1, 28, 28] */
static tr_module *make_generator(void)
{
    return tr_sequential(tr_linear(LATENT, 32 * 7 * 7, .seed = 1), tr_unflatten_layer(1, TR_SHAPE(32, 7, 7)),
        tr_batch_norm2d(32, .relu = true), tr_conv_transpose2d(32, 16, 4, .stride = 2, .padding = 1, .seed = 2),
        tr_batch_norm2d(16, .relu = true), tr_conv_transpose2d(16, 1, 4, .stride = 2, .padding = 1, .seed = 3),
        tr_activation_layer(tr_tanh));
}

/* images -> how real each one looks: logits [batch, 1] */
static tr_module *make_critic(void)
{
    return tr_sequential(tr_conv2d(1, 16, 4, .stride = 2, .padding = 1, .seed = 4), tr_leaky_relu_layer(0.2),
        tr_conv2d(16, 32, 4, .stride = 2, .padding = 1, .seed = 5), tr_batch_norm2d(32), tr_leaky_relu_layer(0.2),
        tr_flatten_layer(), tr_linear(32 * 7 * 7, 1, .seed = 6));
}

typedef struct player {
    tr_module *net, *ddp; /* net, and net under tr_ddp() */
    tr_optimizer *opt;
} player;

static tr_status start(player *p, tr_module *net, tr_group *world, tr_device here)
{
    tr_status status = tr_module_to(net, here);
    *p = (player){net, tr_ddp(net, world), tr_adam(tr_parameters(net), .lr = 1e-3, .beta1 = 0.5)};
    return status;
}

/* ---- What each rank does ----------------------------------------------------------------------------------------- */

/* The mean loss if the critic should judge these images as target: 1 real, 0 drawn. */
static tr_tensor *judged(tr_tensor *logits, double target)
{
    return tr_bce_with_logits(logits, tr_full(target, tr_shape_of(logits), .device = tr_device_of(logits)));
}

static tr_status update(player *p, tr_tensor *loss)
{
    tr_zero_grad(p->opt);
    tr_status status = tr_backward(loss); /* DDP averages over the ranks */
    return status == TR_OK ? tr_step(p->opt) : status;
}

/* One update of each net: the critic learns to tell real images from drawn ones, then the generator learns to deceive it. */
static tr_status train_step(player *generator, player *critic, tr_tensor *images, tr_tensor *z, double losses[2])
{
    TR_SCOPE;
    tr_tensor *drawn = tr_forward(generator->ddp, z);
    /* The critic's update leaves the generator alone: detached images have no graph, so backward ends at them. */
    tr_tensor *real = judged(tr_forward(critic->ddp, images), 0.9), *fake = judged(tr_forward(critic->ddp, tr_detach(drawn)), 0);
    tr_tensor *loss = tr_add(real, fake);
    tr_status status = update(critic, loss);
    /* The same images with their graph: the gradient passes through the frozen critic, whose weights get none. */
    if (status == TR_OK) status = tr_freeze(critic->net, true);
    tr_tensor *deceived = judged(tr_forward(critic->ddp, drawn), 1);
    if (status == TR_OK) status = update(generator, deceived);
    if (status == TR_OK) status = tr_freeze(critic->net, false);
    losses[0] = tr_item(loss);
    losses[1] = tr_item(deceived);
    return status;
}

/* Draws images, [DRAWN, 1, 28, 28] on the CPU, and writes them side by side as one grey image. */
static tr_status draw(tr_module *generator, tr_device here, tr_tensor **images)
{
    enum { WIDTH = GRID * SIDE };
    static const char head[] = "P5\n224 224\n255\n";
    _Static_assert(WIDTH == 224, "as the head says");
    static unsigned char file[sizeof head - 1 + WIDTH * WIDTH];
    TR_NO_GRAD;
    tr_status status = tr_eval(generator);
    *images = tr_contiguous(tr_to(tr_forward(generator, tr_to(tr_randn(77, TR_SHAPE(DRAWN, LATENT)), here)), tr_cpu(0)));
    if (status == TR_OK) status = tr_status_of(*images);
    if (status != TR_OK) return status;
    const float *values = tr_data(*images);
    memcpy(file, head, sizeof head - 1);
    for (int i = 0; i < WIDTH * WIDTH; i++) {
        int y = i / WIDTH, x = i % WIDTH, image = y / SIDE * GRID + x / SIDE;
        file[sizeof head - 1 + i] = (unsigned char)(127.5 * (values[image * PIXELS + y % SIDE * SIDE + x % SIDE] + 1));
    }
    return tr_write_file("samples.pgm", file, sizeof file);
}

/* How alike drawn images and their nearest patterns are, from -1 to 1, and how many patterns are drawn. */
static void judge(tr_tensor *images, double *likeness, int *drawn)
{
    TR_NO_GRAD;
    tr_tensor *patterns[PATTERNS];
    for (int i = 0; i < PATTERNS; i++) patterns[i] = tr_reshape(tr_tanh(tr_affine(pattern(i), 2, 0)), TR_SHAPE(PIXELS));
    tr_tensor *a = tr_reshape(images, TR_SHAPE(DRAWN, PIXELS)), *b = tr_stack(patterns, PATTERNS, 0);
    tr_tensor *cosines = tr_matmul(tr_div(a, tr_norm(a, 2, 1, .keep = true)),
        tr_transpose(tr_div(b, tr_norm(b, 2, 1, .keep = true)), 0, 1)); /* [DRAWN, PATTERNS] */
    tr_tensor *counts = tr_sum(tr_one_hot(tr_argmax(cosines, 1), PATTERNS, TR_F32), 0);
    *likeness = tr_item(tr_mean(tr_max(cosines, 1)));
    *drawn = (int)tr_numel(tr_flatnonzero(counts));
}

static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join(.backend = s->backend);
    tr_device here;
    tr_status status = tr_group_device_named(world, s->device, &here);
    if (status != TR_OK) return status;
    int ranks = tr_world_size(world), local_batch = BATCH / ranks;
    tr_dataset *set = *s->folder ? tr_dataset_map(tr_mnist(s->folder), to_signs, NULL) : tr_dataset_new(4096, make_image);
    tr_loader *loader = tr_loader_new(set, .batch = local_batch, .shuffle = true, .drop_last = true, .group = world,
        .device = here);
    player generator, critic;
    if ((status = start(&generator, make_generator(), world, here)) != TR_OK) return status;
    if ((status = start(&critic, make_critic(), world, here)) != TR_OK) return status;
    for (int step = 0; step < s->steps; step++) {
        TR_SCOPE;
        tr_batch b;
        double losses[2];
        if ((status = tr_loader_next(loader, &b)) == TR_END) status = tr_loader_next(loader, &b); /* the next epoch */
        if (status != TR_OK) return status;
        uint64_t seed = (uint64_t)(1000000 + step * ranks + rank); /* its own */
        tr_tensor *z = tr_to(tr_randn(seed, TR_SHAPE(local_batch, LATENT)), here);
        if ((status = train_step(&generator, &critic, b.x, z, losses)) != TR_OK) return status;
        if (rank == 0 && step % 50 == 0) printf("step %3d  critic %.3f  generator %.3f\n", step, losses[0], losses[1]);
    }
    tr_tensor *images;
    double likeness = 1;
    int drawn = PATTERNS;
    if (rank == 0 && (status = draw(generator.net, here, &images)) != TR_OK) return status;
    if (rank == 0 && !*s->folder) judge(images, &likeness, &drawn);
    if (rank == 0 && !*s->folder) printf("drawn images are %.2f like a pattern; %d patterns are drawn\n", likeness, drawn);
    if (s->steps == ALL && (likeness < 0.4 || drawn < 3))
        return tr_fail(TR_STATE, "the generator draws no patterns, or always the same one");
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the ranks leave main() here */
    settings s = {.device = "cpu", .backend = "native", .steps = ALL};
    for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (strcmp(argv[1], "--steps") == 0) s.steps = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    if (argc > 2) snprintf(s.folder, sizeof s.folder, "%s", argv[2]);
    TR_CHECK(tr_spawn(train, argc > 1 ? atoi(argv[1]) : 2, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
