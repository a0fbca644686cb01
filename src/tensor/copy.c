/* Copying elements between tensors of any dtypes, strides and devices. */
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
    switch (loop->bytes[0]) {
    case 1: MOVE(uint8_t) break;
    case 2: MOVE(uint16_t) break;
    case 4: MOVE(uint32_t) break;
    default: MOVE(uint64_t) break;
    }
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

static void copy_on_cpu(tr_tensor *into, const tr_tensor *from)
{
    tr__loop loop;
    tr__loop_init(&loop, into->shape, (const tr_tensor *const[]){into, from}, 2);
    tr__loop_run(&loop, tr__pool_of(into), converter(into->dtype, from->dtype), NULL);
}

/* Between devices only contiguous bytes travel; the CPU's side is made so first, or spread out after. */
static tr_status copy_across(tr_tensor *into, const tr_tensor *from)
{
    TR_SCOPE;
    bool from_cpu = tr__device_of(from).kind == TR_CPU, into_cpu = tr__device_of(into).kind == TR_CPU;
    bool alike = into->dtype == from->dtype && tr__shape_equal(into->shape, from->shape);
    const tr_tensor *source = from;
    tr_tensor *target = into;
    if (from_cpu && !(alike && tr_is_contiguous(from))) {
        tr_tensor *staged = tr__tensor_new(into->shape, into->dtype, tr__device_of(from));
        TR__TRY(tr_status_of(staged));
        copy_on_cpu(staged, from);
        source = staged;
    }
    if (into_cpu && !(alike && tr_is_contiguous(into))) {
        target = tr__tensor_new(from->shape, from->dtype, tr__device_of(into));
        TR__TRY(tr_status_of(target));
    }
    if (!tr_is_contiguous(source) || !tr_is_contiguous(target) || source->dtype != target->dtype ||
        !tr__shape_equal(source->shape, target->shape))
        return tr__fail(
            TR_UNSUPPORTED, "copy: from %s %s to %s %s on another device: make both contiguous and alike first",
            tr_dtype_name(from->dtype), TR__TEXT(from->shape), tr_dtype_name(into->dtype), TR__TEXT(into->shape));
    tr_device to_device = tr__device_of(target);
    size_t bytes = (size_t)tr__numel(target->shape) * tr_dtype_size(target->dtype);
    if (bytes)
        TR__TRY(tr__device(to_device.kind == TR_CPU ? tr__device_of(source).kind : to_device.kind)
                    ->copy(to_device, tr__ptr(target), tr__device_of(source), tr__ptr(source), bytes));
    if (target != into) copy_on_cpu(into, target);
    return TR_OK;
}

tr_status tr__copy_elements(tr_tensor *into, const tr_tensor *from)
{
    if (tr__device_of(into).kind != TR_CPU || tr__device_of(from).kind != TR_CPU) return copy_across(into, from);
    copy_on_cpu(into, from);
    return TR_OK;
}
