/*
 * bench/devices [ROUNDS [BATCH]]: training steps of a compute-bound MLP (1024 wide, batch 1024, SGD) on one device of one thread, and on
 * two such devices with DataParallel, split by tr_to(), and as a pipeline of 8 micro-batches. The ways take turns; medians, and
 * the median of the ratios to the one device's step of the same round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <trireme/trireme.h>

enum { WIDE = 1024, CLASSES = 10, WAYS = 5, MOST_ROUNDS = 1000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static tr_module *half(uint64_t seed, bool last)
{
    return tr_sequential(tr_linear(WIDE, WIDE, .seed = seed), tr_activation_layer(tr_relu), tr_linear(WIDE, WIDE, .seed = seed + 1),
        tr_activation_layer(tr_relu), last ? tr_linear(WIDE, CLASSES, .seed = seed + 2) : tr_sequential_n(NULL, 0));
}

static tr_tensor *loss_of(tr_tensor *output, tr_tensor *y, void *user)
{
    (void)user;
    return tr_cross_entropy(output, y);
}

typedef struct way {
    const char *name;
    tr_module *half[2], *model; /* model: of DataParallel */
    tr_pipeline *pipe;
    tr_optimizer *opt;
    double seconds[MOST_ROUNDS];
} way;

static void step(way *w, tr_tensor *x, tr_tensor *y)
{
    TR_SCOPE;
    tr_zero_grad(w->opt);
    if (w->pipe) {
        TR_CHECK(tr_pipeline_step(w->pipe, x, y, NULL));
    } else {
        tr_device second = tr_device_of(tr_list_at(tr_parameters(w->half[1]), 0));
        tr_tensor *out = w->model ? tr_forward(w->model, x) : tr_forward(w->half[1], tr_to(tr_forward(w->half[0], x), second));
        TR_CHECK(tr_backward(tr_cross_entropy(out, tr_to(y, tr_device_of(out)))));
    }
    TR_CHECK(tr_step(w->opt));
}

static way make_way(int kind)
{
    const char *const names[WAYS] = {"one device", "data parallel", "split", "pipeline, 1F1B", "pipeline, GPipe"};
    way w = {.name = names[kind], .half = {half(1, false), half(5, true)}};
    if (kind >= 2) TR_CHECK(tr_module_to(w.half[1], tr_cpu(1)));
    tr_module *both = tr_sequential_n(w.half, 2);
    if (kind == 1) w.model = tr_data_parallel(both, .count = 2);
    if (kind >= 3)
        w.pipe = tr_pipeline_new(w.half, 2, .loss = loss_of, .micro_batches = 8, .schedule = kind == 3 ? TR_1F1B : TR_GPIPE);
    w.opt = tr_sgd(tr_parameters(both), .lr = 0.01);
    TR_CHECK(tr_status_of(w.opt));
    return w;
}

static int by_size(const void *x, const void *y)
{
    const double *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_size);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1);
    setenv("TRIREME_THREADS", "1", 1);
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    int64_t batch = argc > 2 ? atoi(argv[2]) : 1024;
    if (rounds < 1 || rounds > MOST_ROUNDS || batch < 8 || batch % 8) return 2; /* 8 micro-batches */
    static way ways[WAYS];
    for (int i = 0; i < WAYS; i++) ways[i] = make_way(i);
    tr_tensor *x = tr_randn(7, TR_SHAPE(batch, WIDE)), *y = tr_argmax(tr_randn(8, TR_SHAPE(batch, CLASSES)), 1);
    for (int r = -2; r < rounds; r++) /* the first two are not counted */
        for (int i = 0; i < WAYS; i++) {
            double start = now();
            step(&ways[i], x, y);
            if (r >= 0) ways[i].seconds[r] = now() - start;
        }
    static double ratios[WAYS][MOST_ROUNDS];
    for (int i = 0; i < WAYS; i++)
        for (int r = 0; r < rounds; r++) ratios[i][r] = ways[0].seconds[r] / ways[i].seconds[r];
    for (int i = 0; i < WAYS; i++)
        printf("%-16s %7.1f ms  %.2fx\n", ways[i].name, 1e3 * median(ways[i].seconds, rounds), median(ratios[i], rounds));
    return 0;
}
