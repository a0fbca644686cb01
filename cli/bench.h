/* The parts of `trireme bench`. */
#ifndef TRIREME_CLI_BENCH_H
#define TRIREME_CLI_BENCH_H

#include "options.h"

#include <trireme/trireme.h>

#define TR__BENCH "bench" /* in messages */

/* argv[0] is the name. Each returns the exit code. */
int tr__bench_collective(int argc, char **argv);
int tr__bench_tune(int argc, char **argv);
int tr__bench_predict(int argc, char **argv);
int tr__bench_store(int argc, char **argv);
int tr__bench_join(int argc, char **argv);
int tr__bench_groups(int argc, char **argv);
int tr__bench_rpc(int argc, char **argv);
int tr__bench_loader(int argc, char **argv);
int tr__bench_checkpoint(int argc, char **argv);
int tr__bench_dist(int argc, char **argv);
int tr__bench_report(int argc, char **argv);

/* ---- What benches share ------------------------------------------------------------------------------------------- */

/* A bench, which several processes may run. Reads its options; then this process is one of the ranks, or the only one, or it
 * starts them with the same arguments. Returns the exit code. */
typedef struct tr__bench_job {
    const tr__syntax *syntax;
    int *ranks;               /* one of the options, or fixed; gets how many a launcher has started. NULL: one process */
    int (*check)(void *self); /* the options together; -1 when all is well, else the exit code, after a message. NULL: nothing */
    int (*rank)(void *self);  /* what a rank does; returns its exit code */
    void *self;
} tr__bench_job;
int tr__bench_run(const tr__bench_job *job, int argc, char **argv);

/* The exit code of a rank that failed so, after a message. TR_CHILD has been told of (a peer's failure, memory that is not there),
 * and another rank's death is told of by it: TR_PEER says nothing. */
int tr__bench_failed(tr_status status);

/* For a job's check: are all sizes whole numbers of f32? */
int tr__check_f32(const tr__sizes *sizes);

/* Each rank on a core of its own, as mpirun does, when there are enough: two that wake each other are soon put on one. */
void tr__take_core(int rank, int world_size);

/* The median of values, which are sorted. */
double tr__median(double *values, int n);
/* The median of a[i] / b[i]: what the machine does to both in one turn falls out. */
double tr__median_ratio(const double *a, const double *b, int n);

/* ---- trireme bench model ------------------------------------------------------------------------------------------ */

typedef struct tr__bench {
    const char *model, *optimizer, *dtype, *device, *backend, *peer, *json;
    int batch, seq, size, ranks, threads, steps, warmup;
    bool step_after_backward, capture, bf16_state, fully_sharded;
} tr__bench;

/* What a model is trained with when nothing else is said. seq 0: its samples are no sequences; size, pixels a side, 0: no
 * images, and below 224 it takes no other. */
typedef struct tr__usual {
    const char *model, *optimizer;
    int batch, seq, size;
} tr__usual;
const tr__usual *tr__usual_of(const char *model); /* NULL: there is no such model */

/* What one rank does with a tr__bench; rank 0 reports. Returns the exit code. */
int tr__bench_rank(void *bench);

/* What is trained: the scope's, as what it is made of. */
typedef struct tr__workload {
    tr_device device;
    tr_module *net; /* in DDP, or fully sharded, when there is a group */
    tr_optimizer *optimizer;
    tr_tensor *x, *y;
    tr_captured_step *captured; /* NULL: steps run op by op */
    tr_batch_loss loss;  /* NULL: cross-entropy of what net gives */
    tr_dtype autocast;   /* TR_F32: none */
    bool in_backward;    /* the optimizer steps there */
    int in_a_row;        /* steps that are timed as one, for their mean */
    const char *item;    /* "token" */
    double items, flops; /* of one rank's step */
    const char *formula; /* of flops, in words */
} tr__workload;
tr_status tr__workload_make(const tr__bench *bench, int rank, tr_group *group, tr__workload *workload);

/* The fastest of a few products by oneDNN's own sgemm on one thread, GFLOP/s; 0 when it fails. matrices: kept between
 * calls, zeroed before the first. */
typedef struct tr__sgemm {
    float *a, *b, *c;
} tr__sgemm;
double tr__sgemm_peak(tr__sgemm *matrices);
void tr__sgemm_free(tr__sgemm *matrices);

/* ---- trireme bench all-reduce and the others ---------------------------------------------------------------------- */

/* What an all_reduce of f32 costs at least: a bare loop over memory that all ranks have mapped, between two bare
 * barriers. */
typedef struct tr__probe tr__probe;
/* TR_CHILD: it has said what the system refused. */
tr_status tr__probe_open(tr_group *group, int64_t most_bytes, tr__probe **probe);
void tr__probe_run(tr__probe *probe, int64_t bytes);
void tr__probe_close(tr__probe *probe);

/* The same between hosts: one bare TCP stream that moves what a rank has to send. */
typedef struct tr__bare_stream tr__bare_stream;
tr_status tr__bare_stream_open(tr_group *group, tr__bare_stream **stream);
tr_status tr__bare_stream_run(const tr__bare_stream *stream, int64_t bytes); /* moves them */
/* From then on rank 1 gives back what rank 0 sends, until that closes the stream: it waits for that in its own close. Rank 0
 * times rounds of so many bytes. */
tr_status tr__bare_stream_bounces(tr__bare_stream *stream);
bool tr__bare_stream_time(const tr__bare_stream *stream, int64_t bytes, int rounds, double *us);
void tr__bare_stream_close(tr__bare_stream *stream);
/* The addresses of MASTER_ADDR, for freeaddrinfo(); NULL, and there is a failure, when it has none. */
struct addrinfo;
struct addrinfo *tr__find_rank0(int socktype, const char *port);

/* What all ranks have to move and to add in an all_reduce, at the same time, and nothing else. */
typedef struct tr__bare_ring tr__bare_ring;
tr_status tr__bare_ring_open(tr_group *group, int64_t most, tr__bare_ring **ring);
tr_status tr__bare_ring_run(const tr__bare_ring *ring, int64_t bytes); /* of the all_reduce */
void tr__bare_ring_close(tr__bare_ring *ring);

/* ---- Peers -------------------------------------------------------------------------------------------------------- */

/* Another program that works off lines: it prints "ready", or "ready NAME VERSION", then a number for every line that it
 * gets. */
typedef struct tr__peer {
    int pid, to, from;   /* of its shell; its stdin and stdout. 0: there is none */
    char text[4096];     /* what it has printed and nobody has taken yet */
    size_t count, taken; /* bytes of text; those of the latest line, whose turn is over with the next one */
    char version[128];   /* "PyTorch 2.15.0", also after its end; empty: it did not say */
} tr__peer;
/* The command is a format's text. In an environment without what would slow it (or us), but for OMP_NUM_THREADS. Each returns
 * false after a message. The peer is over when its shell ends: what it leaves behind in its process group gets SIGTERM in
 * tr__peer_stop(). */
bool tr__peer_start(tr__peer *peer, int threads, const char *command, ...) __attribute__((format(printf, 3, 4)));
bool tr__peer_ask(tr__peer *peer, const char *line, double *answer);
void tr__peer_stop(tr__peer *peer);

#endif
