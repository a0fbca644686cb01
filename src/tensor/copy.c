/* Copying elements between tensors of any dtypes, strides and devices. */
#include "tensor/kernel.h"
#include "tensor/loop.h"
#include "tensor/numbers.h"

#include <string.h>

/* Elements converted at a time, through a buffer in the first-level cache. */
enum { BLOCK = 512 };

/* Runs of one dtype move as bits. */
static void move_run(const tr__loop *loop, char *const *at, int64_t n, const void *unused)
{
    (void)unused;
    int64_t to = tr__loop_step(loop, 0), from = tr__loop_step(loop, 1);
    if (to == 1 && from == 1) {
        memmove(at[0], at[1], (size_t)(n * loop->bytes[0]));
        return;
    }
#define MOVE(type)                                                                          \
    {                                                                                       \
        type *x = (type *)at[0];                                                            \
        const type *y = (const type *)at[1];                                                \
        if (to == 1 && from == 0)                                                           \
            for (int64_t i = 0; i < n; i++) x[i] = *y;                                      \
        else                                                                                \
            for (int64_t i = 0; i < n; i++) x[i * to] = y[i * from];                        \
    }
    TR__OF_BYTES(loop->bytes[0], MOVE)
#undef MOVE
}

/* Others pass through a type that holds both: f32 for the small floats, f64 for floats, i64 for integers. */
#define CONVERT_RUN(name, type)                                                                                     \
    static void convert_##name(const tr__loop *loop, char *const *at, int64_t n, const void *unused)                \
    {                                                                                                               \
        (void)unused;                                                                                               \
        int64_t to = tr__loop_step(loop, 0), from = tr__loop_step(loop, 1);                                         \
        type block[BLOCK];                                                                                          \
        for (int64_t i = 0; i < n; i += BLOCK) {                                                                    \
            int64_t m = n - i < BLOCK ? n - i : BLOCK;                                                              \
            tr__read_##name(block, loop->dtype[1], at[1] + i * from * loop->bytes[1], from, m);                     \
            tr__write_##name(loop->dtype[0], at[0] + i * to * loop->bytes[0], to, block, m);                        \
        }                                                                                                           \
    }
CONVERT_RUN(f32, float)
CONVERT_RUN(f64, double)
CONVERT_RUN(i64, int64_t)

static tr__loop_body converter(tr_dtype to, tr_dtype from)
{
    if (to == from) return move_run;
    if (!tr_dtype_is_float(to) && !tr_dtype_is_float(from)) return convert_i64;
    bool small = tr_dtype_is_float(to) && tr_dtype_is_float(from) && to != TR_F64 && from != TR_F64;
    return small ? convert_f32 : convert_f64;
}

/*
 * Transposed copies: the source's elements lie next to each other along another dimension, the rows, than the target's, the
 * columns. Tiles are read row by row of the source and written row by row of the target: walking the source in steps instead
 * would fetch a cache line for each element, and steps of a power of two evict each other's lines.
 */
enum { TILE = 16, FEW = TILE / 2 }; /* of fewer rows, such as three channels, a line of the source holds several columns */

typedef struct transposed {
    const tr__loop *loop;
    int rows; /* the dimension; the columns are the last one */
} transposed;

/* to: [rows, columns], of at most a tile; steps are in elements. */
#define MOVE_TILE(type)                                                                                                \
    static inline __attribute__((always_inline)) void move_tile_##type(char *to, int64_t to_step, const char *from,    \
        int64_t from_step, int64_t rows, int64_t columns)                                                              \
    {                                                                                                                  \
        type tile[TILE][TILE];                                                                                         \
        for (int64_t c = 0; c < columns; c++)                                                                          \
            memcpy(tile[c], (const type *)from + c * from_step, sizeof(type) * (size_t)rows);                          \
        for (int64_t r = 0; r < rows; r++)                                                                             \
            for (int64_t c = 0; c < columns; c++) ((type *)to)[r * to_step + c] = tile[c][r];                          \
    }
MOVE_TILE(uint8_t)
MOVE_TILE(uint16_t)
MOVE_TILE(uint32_t)
MOVE_TILE(uint64_t)

/* Tasks: the other dimensions' indices, TILE rows by TILE rows. */
static void move_tiles(void *arg, int64_t begin, int64_t end)
{
    const transposed *t = arg;
    const tr__loop *loop = t->loop;
    int last = loop->shape.ndim - 1;
    int64_t rows = loop->shape.dim[t->rows], columns = loop->shape.dim[last], blocks = (rows + TILE - 1) / TILE;
    int64_t to_step = loop->stride[0][t->rows], from_step = loop->stride[1][last], bytes = loop->bytes[0];
    for (int64_t task = begin; task < end; task++) {
        int64_t row = task % blocks * TILE, others = task / blocks, n = rows - row < TILE ? rows - row : TILE;
        int64_t to_at = row * to_step, from_at = row;
        for (int d = last - 1; d >= 0; d--) {
            if (d == t->rows) continue;
            to_at += others % loop->shape.dim[d] * loop->stride[0][d];
            from_at += others % loop->shape.dim[d] * loop->stride[1][d];
            others /= loop->shape.dim[d];
        }
        for (int64_t c = 0; c < columns; c += TILE) {
            int64_t m = columns - c < TILE ? columns - c : TILE;
            char *to = loop->base[0] + (to_at + c) * bytes;
            const char *from = loop->base[1] + (from_at + c * from_step) * bytes;
#define MOVE(type)                                                                                                    \
    if (n == TILE && m == TILE) move_tile_##type(to, to_step, from, from_step, TILE, TILE);                           \
    else move_tile_##type(to, to_step, from, from_step, n, m);
            TR__OF_BYTES(bytes, MOVE)
#undef MOVE
        }
    }
}

/* The dimension along which the source's elements lie next to each other, where the copy transposes; else -1. */
static int rows_of(const tr__loop *loop)
{
    int last = loop->shape.ndim - 1;
    if (loop->dtype[0] != loop->dtype[1] || loop->stride[0][last] != 1 || loop->stride[1][last] <= 1) return -1;
    for (int d = 0; d < last; d++)
        if (loop->stride[1][d] == 1) return loop->shape.dim[d] >= FEW ? d : -1;
    return -1;
}

static void copy_on_cpu(tr_tensor *into, const tr_tensor *from)
{
    tr__loop loop;
    tr__loop_init(&loop, into->shape, (const tr_tensor *const[]){into, from}, 2);
    transposed t = {&loop, rows_of(&loop)};
    int64_t n = tr__numel(loop.shape);
    if (n > 0 && t.rows >= 0) {
        int64_t rows = loop.shape.dim[t.rows], columns = loop.shape.dim[loop.shape.ndim - 1];
        int64_t tasks = n / rows / columns * ((rows + TILE - 1) / TILE);
        tr__pool_for(tr__pool_of(into), tasks, TR__GRAIN / (TILE * columns) + 1, move_tiles, &t);
        return;
    }
    tr__loop_run(&loop, tr__pool_of(into), converter(into->dtype, from->dtype), NULL);
}

/* On a device that is not the CPU: broadcast, converted and of any strides by its kernel, alike and without gaps as bytes. */
static tr_status copy_on_device(tr_tensor *into, const tr_tensor *from)
{
    size_t bytes = (size_t)tr__numel(into->shape) * tr_dtype_size(into->dtype);
    if (bytes == 0) return TR_OK;
    bool alike = into->dtype == from->dtype && tr__shape_equal(into->shape, from->shape);
    if (alike && tr_is_contiguous(into) && tr_is_contiguous(from))
        return tr__device_copy(tr__device_of(into), tr__ptr(into), tr__device_of(from), tr__ptr(from), bytes);
    tr_tensor as_into = *from; /* on the stack, so it is nobody's object */
    tr__broadcast_strides(from, into->shape, as_into.stride);
    as_into.shape = into->shape;
    return tr__run_kernel("copy", tr__device_of(into), NULL, 0, (const tr_tensor *const[]){&as_into}, 1,
        (const tr_tensor *const[]){into}, 1);
}

static tr_status copy_on_one(tr_tensor *into, const tr_tensor *from)
{
    if (tr__device_of(into).kind != TR_CPU) return copy_on_device(into, from);
    copy_on_cpu(into, from);
    return TR_OK;
}

/*
 * Between devices row-major bytes travel. from becomes row-major where it is, and what arrives gets its dtype, shape and strides
 * where it arrives; but what the CPU has is broadcast and converted by the CPU.
 */
static tr_status copy_across(tr_tensor *into, const tr_tensor *from)
{
    TR_SCOPE;
    bool alike = into->dtype == from->dtype && tr__shape_equal(into->shape, from->shape);
    bool by_sender = !alike && tr__device_of(from).kind == TR_CPU;
    const tr_tensor *source = from;
    tr_tensor *target = into;
    if (by_sender || !tr_is_contiguous(from)) {
        const tr_tensor *like = by_sender ? into : from;
        tr_tensor *staged = tr__tensor_new(like->shape, like->dtype, tr__device_of(from));
        TR__TRY(tr_status_of(staged));
        TR__TRY(copy_on_one(staged, from));
        source = staged;
    }
    if ((!alike && !by_sender) || !tr_is_contiguous(into)) {
        target = tr__tensor_new(source->shape, source->dtype, tr__device_of(into));
        TR__TRY(tr_status_of(target));
    }
    size_t bytes = (size_t)tr__numel(target->shape) * tr_dtype_size(target->dtype);
    if (bytes) TR__TRY(tr__device_copy(tr__device_of(target), tr__ptr(target), tr__device_of(source), tr__ptr(source), bytes));
    return target == into ? TR_OK : copy_on_one(into, target);
}

tr_status tr__copy_elements(tr_tensor *into, const tr_tensor *from)
{
    if (tr__is_vacant(into)) return tr__refuse_vacant("copy", into);
    if (tr__is_vacant(from)) return tr__refuse_vacant("copy", from);
    tr_device to = tr__device_of(into), at = tr__device_of(from);
    if (to.kind == TR_CPU && at.kind == TR_CPU) {
        copy_on_cpu(into, from);
        return TR_OK;
    }
    return tr_device_equal(to, at) ? copy_on_device(into, from) : copy_across(into, from);
}
