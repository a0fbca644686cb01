/*
 * MPI as the peer of `trireme bench all-reduce` and its like: prints "ready" and its version; then for every line "NAME BYTES CALLS" makes
 * so many calls on f32 and prints rank 0's median in microseconds. Ends with its input.
 */
#define _DEFAULT_SOURCE
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"all-reduce", "reduce", "broadcast", "all-gather", "gather", "scatter",
    "reduce-scatter", "all-to-all", "send-recv", "barrier"};
enum { NAMES = sizeof names / sizeof *names };

static int rank, ranks;

static void ping_pong(float *x, int count)
{
    if (rank == 0) {
        MPI_Send(x, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(x, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPI_Recv(x, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(x, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    }
}

static void call(int name, float *in, float *out, int n)
{
    MPI_Comm world = MPI_COMM_WORLD;
    switch (name) {
    case 0: MPI_Allreduce(MPI_IN_PLACE, in, n, MPI_FLOAT, MPI_SUM, world); break;
    case 1: MPI_Reduce(rank ? in : MPI_IN_PLACE, in, n, MPI_FLOAT, MPI_SUM, 0, world); break;
    case 2: MPI_Bcast(in, n, MPI_FLOAT, 0, world); break;
    case 3: MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, world); break;
    case 4: MPI_Gather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, world); break;
    case 5: MPI_Scatter(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, world); break;
    case 6: MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, world); break;
    case 7: MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, world); break;
    case 8: ping_pong(in, n); break;
    default: MPI_Barrier(world);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(int name, int count, int calls)
{
    size_t elements = (size_t)count * (size_t)ranks + 1;
    float *in = calloc(elements, sizeof *in), *out = calloc(elements, sizeof *out);
    double *us = calloc((size_t)calls, sizeof *us), median;
    if (!in || !out || !us) MPI_Abort(MPI_COMM_WORLD, 1);
    /* Memory of its own: what calloc() gives and nobody writes to is one page of zeros, read from the first cache. */
    memset(in, 1, elements * sizeof *in);
    memset(out, 1, elements * sizeof *out);
    for (int i = -3; i < calls; i++) {
        if (i == 0) MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        call(name, in, out, count);
        if (i >= 0) us[i] = 1e6 * (MPI_Wtime() - begin);
    }
    qsort(us, (size_t)calls, sizeof *us, by_value);
    median = us[calls / 2];
    free(in);
    free(out);
    free(us);
    return name == 8 ? median / 2 : median;
}

/* [name, elements, calls]; a name of -1 ends the work. */
static void read_order(int order[3])
{
    char name[64];
    long bytes;
    order[0] = -1;
    if (scanf("%63s %ld %d", name, &bytes, &order[2]) != 3) return;
    for (int i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0) order[0] = i;
    order[1] = (int)(bytes / (long)sizeof(float));
}

/* MPI_Bcast would keep a core busy while the others take their turn. */
static void share_order(int order[3])
{
    MPI_Request request;
    int done = 0;
    MPI_Ibcast(order, 3, MPI_INT, 0, MPI_COMM_WORLD, &request);
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        usleep(500);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length;
        MPI_Get_library_version(version, &length);
        printf("ready %.*s\n", (int)strcspn(version, ",\n"), version); /* "Open MPI v4.1.4" and where it was built */
    }
    for (;;) {
        int order[3] = {0};
        fflush(stdout);
        if (rank == 0) read_order(order);
        share_order(order);
        if (order[0] < 0) break;
        double us = measure(order[0], order[1], order[2]);
        if (rank == 0) printf("%g\n", us);
    }
    MPI_Finalize();
    return 0;
}
