/*
 * Ops: the table, and how one is run.
 *
 * ops.def has a row per op. A family file (elementwise.c, matmul.c, …) holds, for each of its ops, the public function,
 * the shape rule `tr__<name>_infer`, the plain-C reference kernel `tr__<name>_forward` and `tr__<name>_backward`. Backward
 * functions that are more than a composition of ops have rows of their own (layer_norm_grad), so that they too have kernels
 * per device. onednn/ and cpu/ hold faster kernels for CPUs only, in a table indexed by the op.
 *
 * A kernel may answer TR_DECLINED; then the reference computes, which takes every dtype, stride and shape that infer lets
 * through. Of convolutions and gemms there are several kernels: cpu/plan.c chooses.
 */
#ifndef TR_OPS_OP_H
#define TR_OPS_OP_H

#include "tensor/tensor.h"

#include <trireme/kernels.h>
#include <trireme/ops.h>

enum {
#define OP(name, ...) TR__OP_##name,
#include "ops/ops.def"
    TR__OP_COUNT
};

/* The ops of the table. tr__op(gelu) is the row's tr_op. */
extern const tr_op tr__ops[TR__OP_COUNT];
#define tr__op(name) (&tr__ops[TR__OP_##name])

/* Not one of the program's own. */
static inline bool tr__op_builtin(const tr_op *op)
{
    return op >= tr__ops && op < tr__ops + TR__OP_COUNT;
}

/* What messages call input i, written to text: "input 'targets'", or "input 1" where its row has no OP_INPUTS. */
enum { TR__INPUT_NAME = 24 };
const char *tr__input_name(const tr_op *op, int i, char text[TR__INPUT_NAME]);

/* Flags of rows besides the public ones: infer makes the outputs, views of input 0; there is no kernel. */
#define TR__OP_VIEW 0x100u
/* Its attributes say which random numbers it draws. */
#define TR__OP_RANDOM 0x400u
/* Under autocast (autocast.c): f32 inputs are cast to its dtype, or of some ops the first alone, as kernels round f32
 * parameters while they pack them; 16-bit ones to f32; those of several dtypes to f32, unless the
 * op is TR__OP_MIXED: it takes f32 and 16-bit floats together, and its output is f32. */
#define TR__OP_LOW 0x800u
#define TR__OP_LOW_FIRST 0x8000u
#define TR__OP_HIGH 0x1000u
#define TR__OP_WIDEN 0x2000u
#define TR__OP_MIXED 0x20000u
/* Its backward computes the gradient of each input by itself: a call for some inputs and one for the others cost about
 * what one for all does. */
#define TR__OP_BY_INPUT 0x4000u
/* Not of a row: the graph goes on elsewhere behind a node of this op (tr__record_boundary()). */
#define TR__OP_BOUNDARY 0x200u

typedef tr_status (*tr__kernel)(tr_op_call *call);
/* What it does not list is NULL: the reference computes. */
extern const tr__kernel tr__cpu_kernels[TR__OP_COUNT];
/* Of an op that is planned: the algorithm that has computed this call on a CPU, as "Winograd". NULL: of the others. */
const char *tr__plan_name(const tr_op_call *call);

/* For infer: as tr_op_output(), but with dense strides that are given; or with the dimensions in memory in the order of
 * those of `like`, so that images stay channels-last. */
tr_status tr__output_strided(tr_op_call *call, int i, tr_shape shape, const int64_t *stride, tr_dtype dtype);
tr_status tr__output_like(tr_op_call *call, int i, const tr_tensor *like, tr_shape shape, tr_dtype dtype);
/* For infer: output i is `made`, which may be in error. */
tr_status tr__output_made(tr_op_call *call, int i, tr_tensor *made);
/* For kernels and backward functions: x itself when it is of this dtype and lies with these strides (NULL: row-major), else
 * a dense tensor that does, outside the graph; with x's values where they are wanted. May be in error. */
tr_tensor *tr__staged(tr_tensor *x, tr_dtype dtype, const int64_t *stride, bool values);
/* The same for images, channels-last. */
tr_tensor *tr__staged_images(tr_tensor *x, tr_dtype dtype, bool values);
/* Brings what a kernel wrote to `staged` to the tensor that it stands for. */
tr_status tr__unstage(tr_tensor *to, const tr_tensor *staged);
/* The status of the first tensor that is in error; NULL passes. */
tr_status tr__sound(int n, const tr_tensor *const *tensors);
/* Returns it, if it is one, from a function that returns a status. */
#define TR__TRY_ALL(...)                                                    \
    do {                                                                    \
        const tr_tensor *const tried[] = {__VA_ARGS__};                     \
        TR__TRY(tr__sound((int)(sizeof tried / sizeof *tried), tried));     \
    } while (0)

/* From a public function of op: returns when x, which messages call `what`, is NULL or in error. */
#define TR__REQUIRE(op, what, x)                                                              \
    do {                                                                                      \
        if (!(x)) return tr__tensor_fail(TR_INVALID, "%s: %s is NULL", op, what);             \
        if (tr__bad(x)) return tr__tensor_pass(x);                                            \
    } while (0)

/* tr_apply() of an op whose attributes are a dimension of input 0. */
tr_tensor *tr__apply_along(const tr_op *op, int dim, tr_tensor *const *inputs, int n);

/* Runs a kernel of op on outputs that exist (no infer, no graph): how backward functions write where they want to. The
 * caller answers for shapes. */
tr_status tr__op_run(const tr_op *op, const void *attrs, tr_tensor *const *inputs, int n_inputs, tr_tensor *const *outputs,
    int n_outputs);

/* For backward functions: the shape and the dtype of inputs[i], saved or not. */
tr_shape tr__input_shape(const tr_backward_call *call, int i);
tr_dtype tr__input_dtype(const tr_backward_call *call, int i);
/* For backward functions: whether the graph is kept, so that this one may be called again. */
bool tr__retains(const tr_backward_call *call);
/* Does it take parameters that were written to since the forward as they are now? Of a node that has a graph inside. */
bool tr__as_now(const tr_backward_call *call);
/* For backward functions: will nobody read inputs[i], which was saved, after this call? Then the gradient may be written over
 * it, element by element, and tr__touch() marks that. */
bool tr__is_spare(const tr_backward_call *call, int i);
/* For backward functions: where the gradient of inputs[i] is to be written. For a parameter in an arena this is its place
 * there, or what it has instead when it has none there, else a new tensor. *accumulate: add to what is there rather than overwrite. The caller writes
 * it and sets grad_inputs[i] to it. May be a tensor in error. */
tr_tensor *tr__grad_target(tr_backward_call *call, int i, bool *accumulate);
/* Zeros of x's dtype and device: one number, expanded. */
tr_tensor *tr__zeros_like(const tr_tensor *x, tr_shape shape);
/* Sums g over the dimensions in which it was broadcast from shape: the gradient of a broadcast input. */
tr_tensor *tr__sum_to(tr_tensor *g, tr_shape shape);
/* For kernels and backward functions: y += x; and sums (+)= the sums of g over dims, a bit for each. Outside the graph. */
tr_status tr__add_onto(tr_tensor *y, tr_tensor *x);
tr_status tr__sum_onto(tr_tensor *g, uint32_t dims, tr_tensor *sums, bool accumulate);

/* For compositions, which round once, at their end: 16-bit floats as f32, others as they are; and y, which was computed of
 * widened x, of x's dtype again, unless it is f32 for autocast. */
tr_tensor *tr__widened(tr_tensor *x);
tr_tensor *tr__narrowed(tr_tensor *y, const tr_tensor *x);
/* A loss, its sum or its mean; the last two f32 for 16-bit floats. */
tr_tensor *tr__reduced(tr_tensor *loss, tr_reduction reduction);
/* Is t of x's dtype, as an op would want it? Autocast does not ask. */
tr_status tr__dtype_of_x(const char *op, const char *what, const tr_tensor *t, const tr_tensor *x);

/* Under autocast: inputs as op wants them, written to out, which is returned; inputs itself when nothing is to be cast. */
tr_tensor *const *tr__autocast_inputs(const tr_op *op, tr_tensor *const *inputs, int n, tr_tensor **out);

/* TRIREME_CHECK=nan (check.c): is it on, and the check itself, which fails where an output contains a NaN. */
bool tr__checks_numbers(void);
tr_status tr__check_numbers(const tr_op_call *call);

/* Checks for infer: input i is not NULL; neither is, and they share a dtype; it is given, and a float. */
tr_status tr__given(const tr_op_call *call, int i);
tr_status tr__same(const tr_op_call *call, int a, int b);
tr_status tr__float_input(const tr_op_call *call, int i);
/* Input i, a parameter, has the dtype of input 0, or is f32 (a master weight) where autocast made that 16-bit. */
tr_status tr__parameter_input(const tr_op_call *call, int i);

/* A flag, too: the op's forward touches no memory by itself, as it is made of copies, ops and collectives. It runs on every
 * device that has no kernel for it. */
#define TR__OP_ANYWHERE 0x10000u
/* Another: other ranks take part in its forward or backward. Where a backward fails before it comes to the node, backward is called
 * with attrs alone, to tell them; and with n_inputs where they run the forward again, in a recompute segment. */
#define TR__OP_JOINT 0x40000u

#endif
