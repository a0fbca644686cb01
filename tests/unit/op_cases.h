/*
 * The op cases: one list of every op with inputs to try it on. From each case follow the tests in test_ops.c (types against each
 * other, gradients, layouts, sizes, threads), test_ops_nan.c and test_ops_kinks.c. docs/adding-an-op.md says how to choose one.
 */
#ifndef TESTS_OP_CASES_H
#define TESTS_OP_CASES_H

#include <trireme/trireme.h>

enum { OP_CASE_INPUTS = 5, OP_CASE_KINKS = 4 };

typedef enum op_values {
    OP_NORMAL,   /* floats of mean 0 and variance 1 */
    OP_WIDE,     /* floats of variance 16 */
    OP_POSITIVE, /* floats in 0.5 … 2.5 */
    OP_APART,    /* floats in -4 … 4 no two of which are nearly equal: for ops that choose one of them */
    OP_GRID,     /* floats that are multiples of 0.5, so that many are equal */
    OP_IDS,      /* i64, 0 … limit-1 */
    OP_IDS32,    /* i32 */
    OP_LABELS,   /* i64, 0 … limit-1, and a few of -100 */
    OP_MASK,     /* bool, about two in three true; the first of each row always */
} op_values;

typedef struct op_input {
    tr_shape shape;
    op_values values;
    int64_t limit;
    bool fixed; /* the first dimension is no batch: it stays as it is in the empty and the large variant */
} op_input;

/* What an output is that depends on a NaN. */
typedef enum op_nan {
    OP_NAN_STAYS,          /* NaN */
    OP_NAN_IS_LARGEST,     /* ops that order: NaN is in the place of a number larger than all others */
    OP_NAN_IS_SMALLEST,    /* or smaller */
    OP_NAN_COMPARES_FALSE, /* comparisons with NaN are false, */
    OP_NAN_IS_UNEQUAL,     /* but that NaN is unequal to anything */
} op_nan;

/* Where an elementwise op has a kink or jumps in an input while the other floats are 0.5, and whose value and gradient it has
 * there: those of the left, of the right, the mean of both, or a value of its own. */
typedef enum op_side { OP_SMOOTH, OP_LEFT, OP_RIGHT, OP_BETWEEN, OP_ALONE } op_side;
typedef struct op_kink {
    int input;
    double x; /* a multiple of 0.5 from -8 to 8: choose the attributes accordingly */
    op_side side;
} op_kink;

typedef struct op_case {
    const char *name;
    tr_tensor *(*run)(tr_tensor *const *in);
    op_input inputs[OP_CASE_INPUTS];
    int n;
    double tolerance;   /* times the usual one; 0: 1 */
    bool no_grad_check; /* values lie on kinks, or f32 is used, where differences of f64 say nothing */
    op_kink kinks[OP_CASE_KINKS]; /* all that it has, then {0} */
    op_nan nan;
    bool not_empty; /* an empty batch is an error: the largest of nothing */
} op_case;

extern const op_case op_cases[];
extern const int op_case_count;

/* The inputs of a case in a float dtype. batch multiplies the first dimension (0: empty). strided: the same values
 * behind each other in another order, with gaps. Floats require a gradient when asked. The values depend on the
 * case's name alone, not on its place in the list, and are representable in round_to. Failures are tensors in error. */
typedef struct op_variant {
    tr_dtype dtype, round_to;
    int64_t batch;
    bool strided;
} op_variant;
/* The values of x, of at least one dimension, in memory of the opposite order of dimensions, with a gap after each row and
 * something in front. */
tr_tensor *op_case_spread(tr_tensor *x);
void op_case_inputs(const op_case *c, op_variant variant, bool requires_grad, tr_tensor **in);
/* How many times the first dimension, for an input or the output to have more than so many elements. */
int64_t op_case_batch(const op_case *c, int64_t elements);

/* What a case gives: its output and the gradients of its inputs (NULL: none), as row-major f64. */
typedef struct op_result {
    tr_tensor *out, *grads[OP_CASE_INPUTS];
} op_result;
/* Runs a case, and backward from what `gradient` makes for its output when that has one. The test fails where they do. */
op_result op_case_run(const op_case *c, tr_tensor *const *in, tr_tensor *(*gradient)(tr_tensor *out, const void *user),
    const void *user);

#endif
