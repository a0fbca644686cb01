/*
 * collectives MODE [BACKEND]: a rank that a launcher starts, for the tests of mpirun and srun. The modes:
 *   every     every collective on every type, in pieces and in place
 *   all       the same, with two groups side by side, and joins again
 *   mismatch  the ranks make different calls, which .check finds
 *   late      the last rank stays away until the others' timeout
 *   still     rank 0, which serves the store, is stopped, and the other's timeout comes
 *   vain      a receive to which nobody sends, and others beside it
 *   unequal   a message that is longer than its receive expects, and one that is shorter
 *   dropped   a group goes while a receive is under way
 *   forever   barriers until a rank is killed
 *   where     prints rank, world size and local rank
 */
#include <trireme/trireme.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *backend;
static int rank, world;

#define EXPECT(condition)                                                                                        \
    do {                                                                                                         \
        if (!(condition)) {                                                                                      \
            printf("%s:%d: rank %d of %d: failed: %s (%s)\n", __FILE__, __LINE__, rank, world, #condition,       \
                tr_error_message());                                                                             \
            exit(1);                                                                                             \
        }                                                                                                        \
    } while (0)
#define OK(expression) EXPECT((expression) == TR_OK)

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

static float half_to_float(unsigned short h)
{
    int exponent = h >> 10 & 31;
    float size = exponent ? ldexpf((float)(1024 + (h & 1023)), exponent - 25) : ldexpf((float)(h & 1023), -24);
    return h & 0x8000 ? -size : size;
}

/* Of whole numbers to 2047. */
static unsigned short float_to_half(float x)
{
    if (x == 0) return 0;
    int exponent;
    float part = frexpf(x, &exponent);
    return (unsigned short)((exponent + 14) << 10 | ((int)(part * 2048) & 1023));
}

static void put(tr_dtype dtype, void *buffer, int64_t i, double value)
{
    float f = (float)value;
    unsigned bits;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case TR_F32: ((float *)buffer)[i] = f; break;
    case TR_F64: ((double *)buffer)[i] = value; break;
    case TR_F16: ((unsigned short *)buffer)[i] = float_to_half(f); break;
    case TR_BF16: ((unsigned short *)buffer)[i] = (unsigned short)(bits >> 16); break;
    case TR_I64: ((int64_t *)buffer)[i] = (int64_t)value; break;
    case TR_I32: ((int32_t *)buffer)[i] = (int32_t)value; break;
    default: ((uint8_t *)buffer)[i] = (uint8_t)value; break;
    }
}

static double get(tr_dtype dtype, const void *buffer, int64_t i)
{
    float f;
    unsigned bits;
    switch (dtype) {
    case TR_F32: return ((const float *)buffer)[i];
    case TR_F64: return ((const double *)buffer)[i];
    case TR_F16: return half_to_float(((const unsigned short *)buffer)[i]);
    case TR_BF16:
        bits = (unsigned)((const unsigned short *)buffer)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    case TR_I64: return (double)((const int64_t *)buffer)[i];
    case TR_I32: return ((const int32_t *)buffer)[i];
    default: return ((const uint8_t *)buffer)[i];
    }
}

static double value_of(int from, int64_t i, tr_dtype dtype, tr_reduce_op op)
{
    int64_t seed = from * 7 + i * 3;
    if (dtype == TR_BOOL) return seed % 4 == 0;
    if (op == TR_PROD) return (double)(seed % 2 + 1);
    return (double)(op >= TR_BAND ? seed * 5 & 127 : seed % 5 + 1);
}

static double reduced(int64_t i, tr_dtype dtype, tr_reduce_op op)
{
    double r = value_of(0, i, dtype, op);
    for (int from = 1; from < world; from++) {
        double x = value_of(from, i, dtype, op);
        switch (op) {
        case TR_MIN: r = fmin(r, x); break;
        case TR_MAX: r = fmax(r, x); break;
        case TR_PROD: r *= x; break;
        case TR_BAND: r = (double)((int)r & (int)x); break;
        case TR_BOR: r = (double)((int)r | (int)x); break;
        case TR_BXOR: r = (double)((int)r ^ (int)x); break;
        default: r += x; break;
        }
    }
    if (dtype == TR_BOOL && op != TR_BXOR) return r > 0;
    if (op == TR_AVG) r = tr_dtype_is_float(dtype) ? r / world : (double)((int64_t)r / world);
    return r;
}

static bool near(tr_dtype dtype, double a, double b)
{
    double part = dtype == TR_BF16 ? 0x1p-8 : dtype == TR_F16 ? 0x1p-11 : dtype == TR_F32 ? 0x1p-22 : 0x1p-50;
    return fabs(a - b) <= (tr_dtype_is_float(dtype) ? fabs(b) * part : 0);
}

/* A block as `from` gives it: numbers that tell sender, receiver and place. */
static double mark(int from, int to, int64_t i)
{
    return (double)((from * 31 + to * 17 + i) % 113);
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

static bool exists(tr_dtype dtype, tr_reduce_op op)
{
    if (op >= TR_BAND) return !tr_dtype_is_float(dtype);
    return dtype != TR_BOOL || op != TR_AVG;
}

static void reductions(tr_group *g, tr_dtype dtype, tr_reduce_op op, int64_t count)
{
    size_t size = tr_dtype_size(dtype);
    char *in = malloc(size * (size_t)(count * world)), *out = malloc(size * (size_t)count);
    EXPECT(in && out);
    for (int64_t i = 0; i < count * world; i++) put(dtype, in, i, value_of(rank, i, dtype, op));

    OK(tr_all_reduce(g, out, count, .in = in, .dtype = dtype, .op = op));
    for (int64_t i = 0; i < count; i++) EXPECT(near(dtype, get(dtype, out, i), reduced(i, dtype, op)));
    memcpy(out, in, size * (size_t)count);
    OK(tr_all_reduce(g, out, count, .dtype = dtype, .op = op));
    for (int64_t i = 0; i < count; i++) EXPECT(near(dtype, get(dtype, out, i), reduced(i, dtype, op)));

    int root = (int)count % world;
    memcpy(out, in, size * (size_t)count);
    OK(tr_reduce(g, out, count, .dtype = dtype, .op = op, .root = root));
    for (int64_t i = 0; i < count && rank == root; i++)
        EXPECT(near(dtype, get(dtype, out, i), reduced(i, dtype, op)));

    OK(tr_reduce_scatter(g, in, out, count, .dtype = dtype, .op = op));
    for (int64_t i = 0; i < count; i++)
        EXPECT(near(dtype, get(dtype, out, i), reduced(rank * count + i, dtype, op)));
    OK(tr_reduce_scatter(g, in, in + size * (size_t)(count * rank), count, .dtype = dtype, .op = op));
    for (int64_t i = 0; i < count; i++)
        EXPECT(near(dtype, get(dtype, in, rank * count + i), reduced(rank * count + i, dtype, op)));
    free(in);
    free(out);
}

static void not_a_number(tr_group *g)
{
    for (int op = TR_MIN; op <= TR_MAX; op++) {
        float x[3] = {1, rank == world - 1 ? NAN : 2, rank == 0 ? NAN : 3};
        OK(tr_all_reduce(g, x, 3, .op = (tr_reduce_op)op));
        EXPECT(x[0] == 1 && isnan(x[1]) && isnan(x[2]));
    }
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static void fill(tr_dtype dtype, void *buffer, int from, int64_t count)
{
    for (int to = 0; to < world; to++)
        for (int64_t i = 0; i < count; i++) put(dtype, buffer, to * count + i, mark(from, to, i));
}

static void moves(tr_group *g, tr_dtype dtype, int64_t count)
{
    size_t size = tr_dtype_size(dtype), block = size * (size_t)count;
    char *in = malloc(block * (size_t)world), *out = malloc(block * (size_t)world);
    EXPECT(in && out);
    int root = (int)count % world;

    fill(dtype, in, rank, count);
    memcpy(out, in, block);
    OK(tr_broadcast(g, out, count, .dtype = dtype, .root = root));
    for (int64_t i = 0; i < count; i++) EXPECT(get(dtype, out, i) == mark(root, 0, i));

    OK(tr_all_gather(g, in, out, count, .dtype = dtype));
    for (int from = 0; from < world; from++)
        for (int64_t i = 0; i < count; i++) EXPECT(get(dtype, out, from * count + i) == mark(from, 0, i));
    memset(out, 0, block * (size_t)world);
    memcpy(out + block * (size_t)rank, in, block);
    OK(tr_all_gather(g, NULL, out, count, .dtype = dtype));
    for (int from = 0; from < world; from++)
        for (int64_t i = 0; i < count; i++) EXPECT(get(dtype, out, from * count + i) == mark(from, 0, i));

    memset(out, 0, block * (size_t)world);
    OK(tr_gather(g, in, rank == root ? out : NULL, count, .dtype = dtype, .root = root));
    for (int from = 0; from < world && rank == root; from++)
        for (int64_t i = 0; i < count; i++) EXPECT(get(dtype, out, from * count + i) == mark(from, 0, i));

    OK(tr_scatter(g, rank == root ? in : NULL, out, count, .dtype = dtype, .root = root));
    for (int64_t i = 0; i < count; i++) EXPECT(get(dtype, out, i) == mark(root, rank, i));

    OK(tr_all_to_all(g, in, out, count, .dtype = dtype));
    for (int from = 0; from < world; from++)
        for (int64_t i = 0; i < count; i++) EXPECT(get(dtype, out, from * count + i) == mark(from, rank, i));
    OK(tr_all_to_all(g, in, in, count, .dtype = dtype));
    EXPECT(memcmp(in, out, block * (size_t)world) == 0);
    free(in);
    free(out);
}

/* Rank a gives rank b the first (a + 2 * b) % 5 elements of a block, with gaps between blocks. */
static void moves_v(tr_group *g, tr_dtype dtype)
{
    enum { GAP = 7, MOST = 64 };
    int64_t in_counts[MOST], out_counts[MOST], offsets[MOST], gathered[MOST];
    char *in = calloc(GAP * (size_t)world, 8), *out = calloc(GAP * (size_t)world, 8);
    EXPECT(in && out && world <= MOST);
    for (int r = 0; r < world; r++) {
        in_counts[r] = (rank + 2 * r) % 5;
        out_counts[r] = (r + 2 * rank) % 5;
        gathered[r] = (r + 1) % 4;
        offsets[r] = r * GAP;
    }
    fill(dtype, in, rank, GAP);
    OK(tr_all_to_all_v(g, in, out, .in_counts = in_counts, .in_offsets = offsets, .out_counts = out_counts,
        .out_offsets = offsets, .dtype = dtype));
    for (int from = 0; from < world; from++)
        for (int64_t i = 0; i < out_counts[from]; i++)
            EXPECT(get(dtype, out, offsets[from] + i) == mark(from, rank, i));

    OK(tr_all_gather_v(g, in, out, gathered[rank], .out_counts = gathered, .out_offsets = offsets, .dtype = dtype));
    for (int from = 0; from < world; from++)
        for (int64_t i = 0; i < gathered[from]; i++) EXPECT(get(dtype, out, offsets[from] + i) == mark(from, 0, i));

    int root = world - 1;
    memset(out, 0, GAP * 8 * (size_t)world);
    OK(tr_gather_v(g, in, out, gathered[rank], .out_counts = gathered, .out_offsets = offsets, .dtype = dtype,
        .root = root));
    for (int from = 0; from < world && rank == root; from++)
        for (int64_t i = 0; i < gathered[from]; i++) EXPECT(get(dtype, out, offsets[from] + i) == mark(from, 0, i));

    OK(tr_scatter_v(g, in, out, gathered[rank], .in_counts = gathered, .in_offsets = offsets, .dtype = dtype,
        .root = root));
    for (int64_t i = 0; i < gathered[rank]; i++) EXPECT(get(dtype, out, i) == mark(root, rank, i));
    free(in);
    free(out);
}

/* ---- Beside the collectives -------------------------------------------------------------------------------------- */

/* What would hang if a send or a receive took its turn with the collectives. */
static void transfers_beside_collectives(tr_group *g)
{
    int next = (rank + 1) % world, before = (rank + world - 1) % world;
    float sum = 1, mine = (float)rank, theirs = -1;
    tr_work *recv = tr_recv_async(g, &theirs, 1, .peer = before, .tag = 7); /* sent only after the all_reduce */
    OK(tr_all_reduce(g, &sum, 1));
    EXPECT(sum == (float)world && !tr_work_done(recv));
    OK(tr_barrier(g)); /* nobody has sent yet */
    OK(tr_send(g, &mine, 1, .peer = next, .tag = 7));
    OK(tr_wait(recv));
    EXPECT(theirs == (float)before);

    tr_work *barrier = rank == 0 ? tr_barrier_async(g) : NULL; /* which waits for rank 1, which waits for this: */
    if (rank == 0) OK(tr_send(g, &mine, 1, .peer = 1, .tag = 8));
    if (rank == 1) OK(tr_recv(g, &theirs, 1, .peer = 0, .tag = 8));
    OK(rank == 0 ? tr_wait(barrier) : tr_barrier(g));
    if (backend && strcmp(backend, "native") != 0) /* which breaks nothing */
        EXPECT(tr_recv(g, &theirs, 1, .peer = TR_ANY_SOURCE) == TR_UNSUPPORTED);
}

/* Of any length, all ranks send to all first; receives are posted in the other order. */
static void everyone_sends_first(tr_group *g, int64_t count)
{
    enum { MOST = 8 };
    double *out[MOST], *in[MOST];
    tr_work *works[2 * MOST] = {NULL};
    EXPECT(world <= MOST);
    for (int to = 0; to < world; to++) {
        out[to] = malloc(sizeof(double) * (size_t)(count + 1));
        in[to] = malloc(sizeof(double) * (size_t)(count + 1));
        EXPECT(out[to] && in[to]);
        for (int64_t i = 0; i < count; i++) out[to][i] = mark(rank, to, i);
        if (to != rank) works[to] = tr_send_async(g, out[to], count, .peer = to, .dtype = TR_F64);
    }
    OK(tr_barrier(g));
    for (int from = world - 1; from >= 0; from--)
        if (from != rank) works[world + from] = tr_recv_async(g, in[from], count, .peer = from, .dtype = TR_F64);
    for (int w = 0; w < 2 * world; w++) OK(tr_wait(works[w]));
    for (int from = 0; from < world; from++) {
        for (int64_t i = 0; i < count && from != rank; i++) EXPECT(in[from][i] == mark(from, rank, i));
        free(out[from]);
        free(in[from]);
    }
}

/* Round a ring, blocking: rank 0 begins. */
static void pass_on(tr_group *g)
{
    int next = (rank + 1) % world, before = (rank + world - 1) % world;
    for (int turn = 0; turn < 50; turn++) {
        int64_t token = turn;
        if (rank == 0) OK(tr_send(g, &token, 1, .peer = next, .dtype = TR_I64));
        OK(tr_recv(g, &token, 1, .peer = before, .dtype = TR_I64));
        EXPECT(token == turn + (rank == 0 ? world - 1 : rank - 1));
        token++;
        if (rank != 0) OK(tr_send(g, &token, 1, .peer = next, .dtype = TR_I64));
    }
}

/* Of one tag in the order of the sends, of several in any order; collectives run beside them. */
static void many_outstanding(tr_group *g)
{
    enum { MANY = 500, TAGS = 5 };
    static float out[MANY], in[MANY];
    tr_work *works[2 * MANY];
    int next = (rank + 1) % world, before = (rank + world - 1) % world;
    TR_SCOPE;
    for (int i = 0; i < MANY; i++) { /* the receives of one tag after those of the other */
        int number = i % (MANY / TAGS) * TAGS + i / (MANY / TAGS);
        works[i] = tr_recv_async(g, &in[number], 1, .peer = before, .tag = number % TAGS);
    }
    for (int i = 0; i < MANY; i++) {
        out[i] = (float)(rank * MANY + i);
        works[MANY + i] = tr_send_async(g, &out[i], 1, .peer = next, .tag = i % TAGS);
        float sum = 1;
        if (i % 100 == 0) OK(tr_all_reduce(g, &sum, 1));
    }
    for (int i = 2 * MANY - 1; i >= 0; i--) OK(tr_wait(works[i]));
    for (int i = 0; i < MANY; i++) EXPECT(in[i] == (float)(before * MANY + i));
}

/* As one list, with a collective in it. */
static void lists(tr_group *g)
{
    enum { COUNT = 30000 };
    static float out[COUNT], in[COUNT];
    float sum = 1;
    out[COUNT - 1] = (float)rank;
    tr_collective list[] = {
        TR_COLLECTIVE(TR_RECV, .out = in, .count = COUNT, .peer = (rank + world - 1) % world),
        TR_COLLECTIVE(TR_ALL_REDUCE, .out = &sum, .count = 1),
        TR_COLLECTIVE(TR_SEND, .in = out, .count = COUNT, .peer = (rank + 1) % world),
    };
    OK(tr_run_list(g, list, 3));
    EXPECT(sum == (float)world && in[COUNT - 1] == (float)((rank + world - 1) % world));
}

static void transfers(tr_group *g)
{
    if (world == 1) return;
    transfers_beside_collectives(g);
    for (int64_t count = 0; count < 200000; count = count * 40 + 1) everyone_sends_first(g, count);
    pass_on(g);
    many_outstanding(g);
    lists(g);
}

/* ---- Modes ------------------------------------------------------------------------------------------------------- */

enum { PATIENCE_MS = 600000 };

static tr_group *join(const char *name, int timeout_ms)
{
    tr_group *g = tr_join(.backend = backend, .name = name, .timeout_ms = timeout_ms, .check = true);
    OK(tr_status_of(g));
    rank = tr_rank(g);
    world = tr_world_size(g);
    return g;
}

static void every_collective(tr_group *g)
{
    for (int dtype = 0; dtype < TR_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < TR_REDUCE_OP_COUNT; op++)
            for (int64_t count = 1; count < 3000 && exists((tr_dtype)dtype, (tr_reduce_op)op); count += 1213)
                reductions(g, (tr_dtype)dtype, (tr_reduce_op)op, count);
        for (int64_t count = 0; count < 3000; count += 777) moves(g, (tr_dtype)dtype, count);
        moves_v(g, (tr_dtype)dtype);
    }
    reductions(g, TR_BF16, TR_AVG, 1500000); /* in pieces */
    not_a_number(g);
    transfers(g);
}

static void asynchronous(tr_group *g)
{
    enum { WORKS = 8, COUNT = 10000 };
    static float data[WORKS][COUNT];
    tr_work *works[WORKS];
    for (int w = 0; w < WORKS; w++) {
        for (int i = 0; i < COUNT; i++) data[w][i] = (float)(rank + w);
        works[w] = tr_all_reduce_async(g, data[w], COUNT);
    }
    for (int w = WORKS - 1; w >= 0; w--) {
        OK(tr_wait(works[w]));
        EXPECT(data[w][COUNT - 1] == (float)(world * (world - 1) / 2 + world * w));
    }
}

static void all(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    every_collective(g);
    asynchronous(g);
    tr_group *beside = join("beside", PATIENCE_MS);
    OK(tr_barrier(beside));
    asynchronous(g);
    OK(tr_leave(beside));
    OK(tr_leave(g));
    g = join(NULL, PATIENCE_MS);
    OK(tr_barrier(g));
    OK(tr_leave(g));
}

static void every(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    every_collective(g);
    asynchronous(g);
    OK(tr_leave(g));
}

static void mismatch(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    float x[8] = {0};
    tr_status status = rank == 0 ? tr_all_reduce(g, x, 4) : tr_broadcast(g, x, 8);
    EXPECT(status == TR_MISMATCH);
    EXPECT(strstr(tr_error_message(), "rank 0 all_reduce #1 (sum of f32[4] at "));
    EXPECT(strstr(tr_error_message(), "broadcast #1 (f32[8] from rank 0 at "));
    EXPECT(tr_barrier(g) == TR_MISMATCH);
    EXPECT(strstr(tr_error_message(), "is broken"));
    printf("rank %d: %s\n", rank, tr_error_message());
    OK(tr_leave(g));
}

static void late(void)
{
    tr_group *g = join(NULL, 2000);
    if (rank == world - 1) {
        sleep(5);
    } else {
        EXPECT(tr_barrier(g) == TR_TIMEOUT);
        printf("rank %d: %s\n", rank, tr_error_message());
        fflush(stdout);
        sleep(3); /* mpirun ends all when the first one ends */
    }
    OK(tr_leave(g));
}

/* Nor does the store answer then, where ranks say whom they wait for. */
static void still(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    int64_t pid = getpid();
    float x = 0;
    alarm(60);
    OK(tr_broadcast(g, &pid, 1, .dtype = TR_I64));
    OK(tr_barrier(g));
    if (rank == 0) raise(SIGSTOP);
    EXPECT(tr_all_reduce(g, &x, 1, .timeout_ms = 2000) == TR_TIMEOUT);
    printf("rank %d: %s\n", rank, tr_error_message());
    fflush(stdout);
    kill((pid_t)pid, SIGKILL);
    OK(tr_leave(g));
}

/* Rank 0 waits for what rank 1 never sends; what else it has under way ends with it. */
static void vain(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    float x = 0, y = 0;
    if (rank == 0) {
        tr_work *other = tr_recv_async(g, &y, 1, .peer = world - 1, .tag = 4);
        EXPECT(tr_recv(g, &x, 1, .peer = 1, .tag = 3, .timeout_ms = 1000) == TR_TIMEOUT);
        printf("rank 0: %s\n", tr_error_message());
        EXPECT(tr_wait(other) == TR_TIMEOUT);
        EXPECT(strstr(tr_error_message(), "tag 4") && strstr(tr_error_message(), "tag 3"));
        EXPECT(tr_barrier(g) == TR_TIMEOUT && strstr(tr_error_message(), "is broken"));
        EXPECT(tr_send(g, &x, 1, .peer = 1) == TR_TIMEOUT && strstr(tr_error_message(), "is broken"));
        fflush(stdout);
    } else {
        sleep(3); /* mpirun ends all when the first one ends */
    }
    OK(tr_leave(g));
}

static void unequal(void)
{
    for (int sent = 3; sent <= 5; sent += 2) {
        tr_group *g = join(NULL, PATIENCE_MS);
        float x[8] = {0};
        if (rank == 0) OK(tr_send(g, x, sent, .peer = 1, .tag = 9));
        if (rank == 1) {
            EXPECT(tr_recv(g, x, 4, .peer = 0, .tag = 9) == TR_MISMATCH);
            printf("rank 1: %s\n", tr_error_message());
            EXPECT(tr_barrier(g) == TR_MISMATCH);
        }
        OK(tr_leave(g));
    }
}

static void dropped(void)
{
    static float x[4];
    tr_work *recv;
    {
        TR_SCOPE;
        tr_group *g = join(NULL, PATIENCE_MS);
        recv = tr_keep(tr_recv_async(g, x, 4, .peer = (rank + 1) % world));
        OK(tr_barrier(g));
    }
    EXPECT(tr_wait(recv) == TR_CANCELLED);
    EXPECT(strstr(tr_error_message(), "the program dropped the group without tr_leave()"));
    tr_release(recv);
    printf("rank %d: %s\n", rank, tr_error_message());
    fflush(stdout);
    sleep(3); /* mpirun ends all when the first one ends */
}

static void forever(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    OK(tr_barrier(g));
    printf("rank %d is process %ld.\n", rank, (long)getpid());
    fflush(stdout);
    for (;;) {
        float x = 1;
        TR_CHECK(tr_all_reduce(g, &x, 1));
        usleep(1000);
    }
}

static void where(void)
{
    tr_group *g = join(NULL, PATIENCE_MS);
    printf("rank %d of %d, local rank %d\n", rank, world, tr_local_rank(g));
    OK(tr_leave(g));
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "all";
    backend = count > 2 ? arguments[2] : NULL;
    if (strcmp(mode, "mismatch") == 0) mismatch();
    else if (strcmp(mode, "late") == 0) late();
    else if (strcmp(mode, "still") == 0) still();
    else if (strcmp(mode, "vain") == 0) vain();
    else if (strcmp(mode, "unequal") == 0) unequal();
    else if (strcmp(mode, "dropped") == 0) dropped();
    else if (strcmp(mode, "forever") == 0) forever();
    else if (strcmp(mode, "where") == 0) where();
    else if (strcmp(mode, "every") == 0) every();
    else all();
    printf("rank %d of %d: %s: well\n", rank, world, mode);
    return 0;
}
