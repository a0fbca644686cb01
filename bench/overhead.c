/*
 * bench/overhead [REPEATS]: what ops cost besides their arithmetic, on one thread, over 64 numbers of f32: an op alone, an
 * op that is recorded, and four ops forward and backward, sum(relu(x * w + b)). Microseconds, the median of repeats of
 * a thousand; bench/peer/overhead.py does the same in PyTorch.
 */
#include <trireme/trireme.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { NUMBERS = 64, IN_A_ROW = 1000, MOST_REPEATS = 10000 };

typedef struct operands {
    tr_tensor *x, *w, *b; /* w and b want gradients */
} operands;

static void one_op(const operands *o)
{
    TR_SCOPE;
    TR_CHECK(tr_status_of(tr_add(o->x, o->x)));
}

static void one_recorded_op(const operands *o)
{
    TR_SCOPE;
    TR_CHECK(tr_status_of(tr_add(o->x, o->b)));
}

static void four_ops_and_back(const operands *o)
{
    TR_SCOPE;
    tr_clear_grad(o->w);
    tr_clear_grad(o->b);
    TR_CHECK(tr_backward(tr_sum(tr_relu(tr_add(tr_mul(o->x, o->w), o->b)))));
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a call. */
static double time_of(void (*run)(const operands *), const operands *o, int repeats)
{
    static double times[MOST_REPEATS];
    for (int r = 0; r < repeats; r++) {
        double begin = seconds();
        for (int i = 0; i < IN_A_ROW; i++) run(o);
        times[r] = (seconds() - begin) * 1e6 / IN_A_ROW;
    }
    qsort(times, (size_t)repeats, sizeof *times, ascending);
    return times[repeats / 2];
}

int main(int n, char **arguments)
{
    int repeats = n > 1 ? atoi(arguments[1]) : 100;
    if (repeats < 1 || repeats > MOST_REPEATS) {
        fprintf(stderr, "usage: overhead [REPEATS]: 1 to %d, not \"%s\"\n", MOST_REPEATS, arguments[1]);
        return 2;
    }
    TR_SCOPE;
    TR_CHECK(tr_set_threads(1));
    operands o = {
        .x = tr_randn(1, TR_SHAPE(NUMBERS)),
        .w = tr_randn(2, TR_SHAPE(NUMBERS), .requires_grad = true),
        .b = tr_randn(3, TR_SHAPE(NUMBERS), .requires_grad = true),
    };
    printf("an op                        %6.3f us\n", time_of(one_op, &o, repeats));
    printf("an op, recorded              %6.3f us\n", time_of(one_recorded_op, &o, repeats));
    printf("four ops forward and back    %6.3f us\n", time_of(four_ops_and_back, &o, repeats));
    return 0;
}
