/*
 * DataParallel: one process, several devices. Every batch is split over the devices; a thread per device runs a replica that
 * shares the parameters; the gradients are reduced where they lie.
 *
 *   cc data_parallel.c $(pkg-config --cflags --libs trireme) -o data_parallel
 *   TRIREME_CPU_DEVICES=2 ./data_parallel            # images that it draws itself
 *   TRIREME_CPU_DEVICES=2 ./data_parallel FOLDER     # t10k-images-idx3-ubyte.gz and -labels- from FOLDER
 *   ./data_parallel --device cuda                    # over all GPUs
 *   ./data_parallel --samples 100                    # so few images that the result is not judged
 */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 28, CLASSES = 10, BATCH = 32, ALL = 5000 };

/* ---- A dataset of our own: image i shows stripes at the angle of its class, under noise ------------------------------- */

static tr_status stripes_get(const tr_sample_call *call, tr_sample *out)
{
    int64_t class = call->index % CLASSES;
    double angle = 3.14159265 * (double)class / CLASSES;
    out->x = tr_randn((uint64_t)call->index, TR_SHAPE(1, SIDE, SIDE)); /* the same noise in every epoch */
    float *pixels = tr_data(out->x);
    for (int row = 0; pixels && row < SIDE; row++)
        for (int column = 0; column < SIDE; column++)
            pixels[row * SIDE + column] += 0.5f * (float)sin(0.9 * (row * cos(angle) + column * sin(angle)));
    out->y = tr_scalar((double)class, TR_I64);
    return tr_status_of(out->x);
}

/* ---- A model of our own ------------------------------------------------------------------------------------------------- */

typedef struct net {
    tr_module *conv1, *conv2, *hidden, *out;
} net;

static tr_tensor *net_forward(tr_module *self, tr_tensor *const *inputs, int n)
{
    (void)n;
    net *m = tr_module_state(self);
    tr_tensor *x = inputs[0];                                        /* [batch, 1, 28, 28] */
    x = tr_max_pool2d(tr_relu(tr_forward(m->conv1, x)), 2);          /* [batch, 16, 14, 14] */
    x = tr_max_pool2d(tr_relu(tr_forward(m->conv2, x)), 2);          /* [batch, 32, 7, 7] */
    x = tr_reshape(x, TR_SHAPE(tr_size(x, 0), -1));                  /* [batch, 1568] */
    return tr_forward(m->out, tr_relu(tr_forward(m->hidden, x)));    /* [batch, 10] */
}

static tr_module *net_new(uint64_t seed)
{
    tr_module *module = tr_module_new("net", sizeof(net), net_forward);
    net *m = tr_module_state(module);
    m->conv1 = tr_module_add(module, "conv1", tr_conv2d(1, 16, 5, .padding = 2, .seed = seed));
    m->conv2 = tr_module_add(module, "conv2", tr_conv2d(16, 32, 5, .padding = 2, .seed = seed + 1));
    m->hidden = tr_module_add(module, "hidden", tr_linear(32 * 7 * 7, 128, .seed = seed + 2));
    m->out = tr_module_add(module, "out", tr_linear(128, CLASSES, .seed = seed + 3));
    return module;
}

/* ---- Training ------------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    const char *device = "cpu";
    int64_t samples = ALL;
    for (; argc > 2; argc -= 2, argv += 2) {
        if (strcmp(argv[1], "--device") == 0) device = argv[2];
        else if (strcmp(argv[1], "--samples") == 0) samples = atoi(argv[2]);
        else return fprintf(stderr, "usage: data_parallel [--device NAME] [--samples N] [FOLDER]\n"), 2;
    }
    tr_dataset *all = argc > 1 ? tr_mnist(argv[1]) : tr_dataset_new(samples, stripes_get);
    int64_t count = tr_dataset_count(all), held_out = count / 10;
    tr_dataset *training = tr_dataset_slice(all, 0, count - held_out);
    tr_dataset *unseen = tr_dataset_slice(all, count - held_out, count);

    tr_device first;
    tr_module *model = net_new(1);
    TR_CHECK(tr_device_parse(device, &first));
    TR_CHECK(tr_module_to(model, first));
    tr_module *parallel = tr_data_parallel(model); /* over all devices of the kind: cuda:0, cuda:1, … */
    tr_optimizer *opt = tr_adam(tr_parameters(model), .lr = 1e-3);
    tr_loader *loader = tr_loader_new(training, .batch = BATCH, .shuffle = true, .workers = 4, .device = first);
    tr_loader *check = tr_loader_new(unseen, .batch = 100, .workers = 4, .device = first);
    printf("%d devices, %lld samples\n", tr_device_count(first.kind), (long long)tr_dataset_count(training));

    tr_score score;
    for (int epoch = 0; epoch < 4; epoch++) {
        double loss_sum = 0;
        tr_batch b;
        tr_status status;
        while ((status = tr_loader_next(loader, &b)) == TR_OK) {
            TR_SCOPE; /* what this block makes goes when it ends */
            tr_tensor *loss = tr_cross_entropy(tr_forward(parallel, b.x), b.y);
            tr_zero_grad(opt);
            TR_CHECK(tr_backward(loss));
            TR_CHECK(tr_step(opt));
            loss_sum += tr_item(loss) * (double)b.count;
        }
        TR_CHECK_END(status); /* a worker's failure is not the end of the epoch */
        TR_CHECK(tr_evaluate(parallel, check, .score = &score));
        printf("epoch %d  loss %.4f  accuracy %.2f %%\n", epoch + 1, loss_sum / (double)tr_dataset_count(training),
            100 * score.accuracy);
    }
    return score.accuracy >= 0.96 || count < ALL ? 0 : 1;
}
