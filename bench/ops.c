/*
 * bench/ops [SECONDS [NAME]]: what single ops cost on one thread, through the public functions, forward, or forward and
 * backward: microseconds of a call, the median of rounds that take SECONDS (0.1) together. With NAME, only of cases whose name
 * contains it. bench/peer/ops.py times the same in PyTorch.
 */
#include <trireme/trireme.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, SIZE = 1000 };

static tr_tensor *x, *w, *ids, *image, *line, *taps, *kernel, *targets, *weights; /* w, image and line want gradients */

#define CASES(X)                                                                                                \
    X("sort rows", tr_sort(x, -1))                                                                              \
    X("sort columns", tr_sort(x, 0))                                                                            \
    X("sort rows of i64", tr_sort(ids, -1))                                                                     \
    X("sort rows, and back", tr_sort(w, -1))                                                                    \
    X("topk 10 of rows", tr_topk(x, 10, -1))                                                                    \
    X("topk 500 of rows", tr_topk(x, 500, -1))                                                                  \
    X("prod of rows", tr_prod(x, 1))                                                      \
    X("prod of columns", tr_prod(x, 0))                                                   \
    X("prod of rows, and back", tr_prod(w, 1))                                            \
    X("max of rows, and back", tr_max(w, 1))                                              \
    X("argmax of rows", tr_argmax(x, 1))                                                                        \
    X("cumsum of rows", tr_cumsum(x, 1))                                                                        \
    X("cumsum of columns", tr_cumsum(x, 0))                                                                     \
    X("cumsum of rows, and back", tr_cumsum(w, 1))                                                              \
    X("less", tr_less(x, w))                                                                                    \
    X("equal of i64", tr_equal(ids, ids))                                                                       \
    X("conv1d", tr_conv1d_op(line, taps, .padding = 1))                                                         \
    X("conv_transpose2d, and back", tr_conv_transpose2d_op(image, kernel, .stride = 2))                         \
    X("adaptive_max_pool2d", tr_adaptive_max_pool2d(image, 7, 7))                                               \
    X("nearest x2, and back", tr_interpolate(image, .scale = 2))                                                \
    X("bilinear x2, and back", tr_interpolate(image, .scale = 2, .mode = TR_INTERPOLATE_BILINEAR))              \
    X("bicubic x2, and back", tr_interpolate(image, .scale = 2, .mode = TR_INTERPOLATE_BICUBIC))                \
    X("bicubic x2", tr_interpolate(tr_detach(image), .scale = 2, .mode = TR_INTERPOLATE_BICUBIC))               \
    X("cross_entropy weighted, and back", tr_cross_entropy(w, targets, .weight = weights))                      \
    X("nll_loss weighted, and back", tr_nll_loss(w, targets, .weight = weights))

#define COUNT(name, call) +1
static const int count = 0 CASES(COUNT);

static const char *run(int which)
{
    TR_SCOPE;
    const char *text = NULL;
    tr_tensor *y = NULL;
    int at = 0;
#define RUN(name, call) \
    if (at++ == which) { text = name; y = call; }
    CASES(RUN)
    TR_CHECK(tr_status_of(y));
    if (strstr(text, "and back")) {
        tr_clear_grad(w);
        tr_clear_grad(image);
        TR_CHECK(tr_backward(y, .gradient = tr_expand(tr_scalar(1, TR_F32), tr_shape_of(y))));
    }
    return text;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double p = *(const double *)a, q = *(const double *)b;
    return (p > q) - (p < q);
}

static double microseconds(int which, double most)
{
    double times[ROUNDS], begin = seconds();
    run(which);
    int calls = (int)(most / ROUNDS / (seconds() - begin)) + 1;
    for (int r = 0; r < ROUNDS; r++) {
        begin = seconds();
        for (int i = 0; i < calls; i++) run(which);
        times[r] = (seconds() - begin) * 1e6 / calls;
    }
    qsort(times, ROUNDS, sizeof *times, ascending);
    return times[ROUNDS / 2];
}

int main(int n, char **arguments)
{
    double most = n > 1 ? atof(arguments[1]) : 0.1;
    if (!(most > 0)) {
        fprintf(stderr, "usage: ops [SECONDS [NAME]]: above 0, not \"%s\"\n", arguments[1]);
        return 2;
    }
    TR_SCOPE;
    TR_CHECK(tr_set_threads(1));
    x = tr_randn(1, TR_SHAPE(SIZE, SIZE));
    w = tr_randn(2, TR_SHAPE(SIZE, SIZE), .requires_grad = true);
    ids = tr_cast(tr_affine(tr_rand(3, TR_SHAPE(SIZE, SIZE)), 1e6, 0), TR_I64);
    targets = tr_cast(tr_affine(tr_rand(4, TR_SHAPE(SIZE)), SIZE, 0), TR_I64);
    weights = tr_rand(5, TR_SHAPE(SIZE));
    image = tr_randn(6, TR_SHAPE(4, 32, 56, 56), .requires_grad = true);
    line = tr_randn(7, TR_SHAPE(8, 64, 1024));
    taps = tr_randn(8, TR_SHAPE(64, 64, 3));
    kernel = tr_randn(9, TR_SHAPE(32, 16, 2, 2));
    for (int i = 0; i < count; i++) {
        const char *name = run(i);
        if (n < 3 || strstr(name, arguments[2])) printf("%s\t%.1f\n", name, microseconds(i, most));
    }
    return 0;
}
