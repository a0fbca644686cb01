/*
 * A variational autoencoder (Kingma and Welling, 2014) on two ranks: modules with several outputs under DDP, the
 * reparameterization trick, a loss of two terms, and images drawn from the prior.
 *
 *   ./vae [--device cuda [--backend nccl]] [--samples N] [RANKS [FOLDER]]
 *
 * FOLDER has MNIST's t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (or .gz). Without it the images are made: ten
 * patterns under noise. Rank 0 writes 64 drawn images to samples.pgm. On "cuda" the ranks take the GPUs in turn. Of
 * fewer samples than 4,000 the result is not judged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, HIDDEN = 128, LATENT = 8, BATCH = 64, EPOCHS = 6, ALL = 4000, GRID = 8 };

typedef struct settings {
    char folder[1024]; /* "": made images */
    char device[16], backend[16];
    int samples;
} settings;

/* ---- The images: grey values from 0 to 1 ------------------------------------------------------------------------- */

/* Sample i has pattern i % 10, of squares of 4 by 4: [1, 28, 28] */
static tr_status make_image(const tr_sample_call *call, tr_sample *out)
{
    tr_tensor *pattern = tr_randn((uint64_t)(call->index % 10), TR_SHAPE(1, 7, 1, 7, 1));
    tr_tensor *image = tr_reshape(tr_expand(pattern, TR_SHAPE(1, 7, 4, 7, 4)), TR_SHAPE(1, SIDE, SIDE));
    tr_tensor *noise = tr_randn((uint64_t)(1000 + call->index), TR_SHAPE(1, SIDE, SIDE));
    out->x = tr_sigmoid(tr_affine(tr_add(image, tr_affine(noise, 0.3, 0)), 4, 0));
    return tr_status_of(out->x);
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

typedef struct encoder {
    tr_module *body, *mean, *log_variance;
} encoder;

/* x: [batch, 784] -> the mean and the logarithm of the variance of q(z|x), each [batch, LATENT] */
static tr_status encode(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    (void)n;
    const encoder *e = tr_module_state(self);
    tr_tensor *h = tr_relu(tr_forward(e->body, inputs[0])); /* [batch, HIDDEN] */
    outputs[0] = tr_forward(e->mean, h);
    outputs[1] = tr_forward(e->log_variance, h);
    return TR_OK; /* an output in error is the failure */
}

static tr_module *encoder_new(void)
{
    tr_module *module = tr_module_new_many("encoder", sizeof(encoder), 2, encode);
    encoder *e = tr_module_state(module);
    if (!e) return module; /* in error: who uses it hears of it */
    e->body = tr_module_add(module, "body", tr_linear(PIXELS, HIDDEN, .seed = 1));
    e->mean = tr_module_add(module, "mean", tr_linear(HIDDEN, LATENT, .seed = 2));
    e->log_variance = tr_module_add(module, "log_variance", tr_linear(HIDDEN, LATENT, .seed = 3));
    return module;
}

typedef struct vae {
    tr_module *encoder, *decoder;
} vae;

/* x: [batch, 784], noise: [batch, LATENT] -> logits of the pixels [batch, 784], mean, log_variance. z, which is
 * mean + deviation * noise, is drawn from q(z|x), and the gradient goes through it: the randomness is an input. */
static tr_status vae_forward(tr_module *self, tr_tensor *const *inputs, int n, tr_tensor **outputs)
{
    (void)n;
    const vae *m = tr_module_state(self);
    tr_tensor *q[2];
    tr_status status = tr_forward_many(m->encoder, inputs, 1, q, 2);
    if (status != TR_OK) return status;
    tr_tensor *deviation = tr_exp(tr_affine(q[1], 0.5, 0));
    outputs[0] = tr_forward(m->decoder, tr_add(q[0], tr_mul(deviation, inputs[1])));
    outputs[1] = q[0];
    outputs[2] = q[1];
    return TR_OK;
}

static tr_module *vae_new(void)
{
    tr_module *module = tr_module_new_many("vae", sizeof(vae), 3, vae_forward);
    vae *m = tr_module_state(module);
    if (!m) return module;
    m->encoder = tr_module_add(module, "encoder", encoder_new());
    m->decoder = tr_module_add(module, "decoder",
        tr_sequential(tr_linear(LATENT, HIDDEN, .seed = 4), tr_relu_layer(), tr_linear(HIDDEN, PIXELS, .seed = 5)));
    return module;
}

/* ---- What each rank does ----------------------------------------------------------------------------------------- */

/* One step; adds its reconstruction error and KL divergence, each the mean of an image, to sums. x: [n, 1, 28, 28] */
static tr_status train_step(tr_module *ddp, tr_optimizer *opt, tr_tensor *x, tr_tensor *noise, double sums[2])
{
    TR_SCOPE;
    double n = (double)tr_shape_of(x).dim[0];
    tr_tensor *flat = tr_reshape(x, TR_SHAPE(tr_shape_of(x).dim[0], PIXELS)), *outputs[3];
    tr_status status = tr_forward_many(ddp, (tr_tensor *[]){flat, noise}, 2, outputs, 3);
    if (status != TR_OK) return status;
    tr_tensor *mean = outputs[1], *log_variance = outputs[2];
    tr_tensor *reconstruction = tr_affine(tr_bce_with_logits(outputs[0], flat, .reduction = TR_REDUCE_SUM), 1 / n, 0);
    /* KL(q || N(0, 1)) = -1/2 sum(1 + log_variance - mean^2 - variance) */
    tr_tensor *terms = tr_sub(tr_sub(tr_affine(log_variance, 1, 1), tr_mul(mean, mean)), tr_exp(log_variance));
    tr_tensor *kl = tr_affine(tr_sum(terms), -0.5 / n, 0);
    tr_zero_grad(opt);
    if ((status = tr_backward(tr_add(reconstruction, kl))) != TR_OK) return status; /* DDP averages over the ranks */
    if ((status = tr_step(opt)) != TR_OK) return status;
    sums[0] += tr_item(reconstruction);
    sums[1] += tr_item(kl);
    return TR_OK;
}

/* Draws GRID * GRID images: z from N(0, 1), decoded, as one grey image. */
static tr_status write_samples(const char *path, tr_module *net, tr_device here)
{
    TR_SCOPE;
    TR_NO_GRAD;
    enum { WIDTH = GRID * SIDE };
    static const char head[] = "P5\n224 224\n255\n";
    _Static_assert(WIDTH == 224, "as the head says");
    unsigned char file[sizeof head - 1 + WIDTH * WIDTH], *pixels = file + sizeof head - 1;
    memcpy(file, head, sizeof head - 1);
    tr_tensor *z = tr_to(tr_randn(77, TR_SHAPE(GRID * GRID, LATENT)), here);
    tr_tensor *images = tr_to(tr_sigmoid(tr_forward(tr_module_find(net, "decoder"), z)), tr_cpu(0)); /* [64, 784] */
    tr_status status = tr_status_of(images);
    if (status != TR_OK) return status;
    const float *values = tr_data(images);
    for (int i = 0; i < WIDTH * WIDTH; i++) {
        int y = i / WIDTH, x = i % WIDTH, image = y / SIDE * GRID + x / SIDE;
        pixels[i] = (unsigned char)(255 * values[image * PIXELS + y % SIDE * SIDE + x % SIDE]);
    }
    return tr_write_file(path, file, sizeof file);
}

/* A failure that it returns is what tr_spawn() returns. */
static tr_status train(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    const settings *s = argument;
    TR_SCOPE;
    tr_group *world = tr_join(.backend = s->backend);
    tr_device here;
    tr_status status = tr_group_device_named(world, s->device, &here);
    if (status != TR_OK) return status;
    tr_dataset *set = *s->folder ? tr_mnist(s->folder) : tr_dataset_new(s->samples, make_image, .name = "patterns");
    int share = BATCH / tr_world_size(world);
    tr_loader *loader = tr_loader_new(set, .batch = share, .shuffle = true, .group = world, .device = here);
    tr_module *net = vae_new();
    if ((status = tr_module_to(net, here)) != TR_OK) return status;
    tr_module *ddp = tr_ddp(net, world);
    tr_optimizer *opt = tr_adam(tr_parameters(net), .lr = 2e-3);
    double sums[2] = {0};
    uint64_t step = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int64_t steps = 0;
        tr_batch b;
        sums[0] = sums[1] = 0;
        while ((status = tr_loader_next(loader, &b)) == TR_OK) {
            TR_SCOPE;
            uint64_t seed = 1000000 + step++ * (uint64_t)tr_world_size(world) + (uint64_t)rank; /* each rank has its own */
            tr_tensor *noise = tr_to(tr_randn(seed, TR_SHAPE(tr_shape_of(b.x).dim[0], LATENT)), here);
            if ((status = train_step(ddp, opt, b.x, noise, sums)) != TR_OK) return status;
            steps++;
        }
        if (status != TR_END) return status;
        for (int i = 0; i < 2; i++) sums[i] /= (double)steps;
        if ((status = tr_all_reduce(world, sums, 2, .dtype = TR_F64, .op = TR_AVG)) != TR_OK) return status;
        double loss = sums[0] + sums[1];
        if (rank == 0) printf("epoch %d  reconstruction %.2f  KL %.2f  loss %.3f\n", epoch, sums[0], sums[1], loss);
    }
    if (rank == 0 && (status = write_samples("samples.pgm", net, here)) != TR_OK) return status;
    if (s->samples == ALL && !*s->folder && sums[0] + sums[1] > 300)
        return tr_fail(TR_STATE, "a loss of %.1f: it should be less than 300", sums[0] + sums[1]);
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the ranks leave main() here */
    settings s = {.device = "cpu", .backend = "native", .samples = ALL};
    for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) snprintf(s.device, sizeof s.device, "%s", argv[2]);
        else if (strcmp(argv[1], "--backend") == 0) snprintf(s.backend, sizeof s.backend, "%s", argv[2]);
        else if (strcmp(argv[1], "--samples") == 0) s.samples = atoi(argv[2]);
        else return fprintf(stderr, "there is no option %s\n", argv[1]), 2;
    }
    if (argc > 2) snprintf(s.folder, sizeof s.folder, "%s", argv[2]);
    TR_CHECK(tr_spawn(train, argc > 1 ? atoi(argv[1]) : 2, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
