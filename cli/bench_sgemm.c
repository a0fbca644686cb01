/* What the matrix engine can do at best: the limit that a training step is measured against. */
#include "bench.h"

#include "clock.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

/* Both a shape of a GPT's own, and a large square. */
static const struct {
    int m, n, k;
} shapes[] = {{2048, 1536, 384}, {1536, 1536, 1536}};
enum { most_elements = 2048 * 1536 };

static float *matrix(void)
{
    float *m = aligned_alloc(64, most_elements * sizeof *m);
    for (int i = 0; m && i < most_elements; i++) m[i] = (float)(i % 17) / 17;
    return m;
}

/* As the library uses oneDNN: with one thread. The OpenMP runtime is the one that oneDNN brought along, if any. */
static void use_one_thread(void)
{
    void (*set_threads)(int);
    *(void **)&set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (set_threads) set_threads(1);
}

double tr__sgemm_peak(tr__sgemm *s)
{
    if (!s->a) {
        s->a = matrix();
        s->b = matrix();
        s->c = matrix();
        use_one_thread();
    }
    if (!s->a || !s->b || !s->c) return 0;
    double best = 0;
    for (int i = 0; i < 4; i++) {
        int m = shapes[i % 2].m, n = shapes[i % 2].n, k = shapes[i % 2].k;
        double begin = tr__now_us();
        if (dnnl_sgemm('N', 'N', m, n, k, 1, s->a, k, s->b, n, 0, s->c, n) != dnnl_success) return 0;
        double speed = 2e-3 * m * n * k / (tr__now_us() - begin);
        if (speed > best) best = speed;
    }
    return best;
}

void tr__sgemm_free(tr__sgemm *s)
{
    free(s->a);
    free(s->b);
    free(s->c);
}
