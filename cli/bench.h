/* The parts of `trireme bench model`. */
#ifndef TRIREME_CLI_BENCH_H
#define TRIREME_CLI_BENCH_H

#include <trireme/trireme.h>

#define TR__BENCH "bench model" /* in messages */

typedef struct tr__bench {
    const char *model, *dtype, *peer, *json;
    int batch, seq, ranks, threads, steps, warmup;
} tr__bench;

/* What one rank does; rank 0 reports. Returns the exit code. */
int tr__bench_rank(const tr__bench *bench);

/* The fastest of a few products by oneDNN's own sgemm on one thread, GFLOP/s; 0 when it fails. matrices: kept between
 * calls, zeroed before the first. */
typedef struct tr__sgemm {
    float *a, *b, *c;
} tr__sgemm;
double tr__sgemm_peak(tr__sgemm *matrices);
void tr__sgemm_free(tr__sgemm *matrices);

/* Another program that runs a step for every line it gets: it prints "ready", then the milliseconds of each step. */
typedef struct tr__peer {
    int pid;
    void *to, *from; /* FILE */
} tr__peer;
/* In an environment without what would slow it (or us), but for OMP_NUM_THREADS. Each returns false after a message. */
bool tr__peer_start(tr__peer *peer, const char *command, int threads);
bool tr__peer_step(tr__peer *peer, double *ms);
void tr__peer_stop(tr__peer *peer);

#endif
