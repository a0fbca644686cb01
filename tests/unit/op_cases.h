/*
 * The op cases: one list of every op with inputs to try it on. tests/unit/test_ops.c holds each case against f64,
 * against differences, in bf16 and f16, strided, empty, large, and with one and two threads; the bench times the same
 * list.
 */
#ifndef TESTS_OP_CASES_H
#define TESTS_OP_CASES_H

#include <trireme/trireme.h>

enum { OP_CASE_INPUTS = 5 };

typedef enum op_values {
    OP_NORMAL,   /* floats of mean 0 and variance 1 */
    OP_WIDE,     /* floats of variance 16 */
    OP_POSITIVE, /* floats in 0.5 … 2.5 */
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

/* Inputs without a shape (ndim -1) end the list. */
typedef struct op_case {
    const char *name;
    tr_tensor *(*run)(tr_tensor *const *in);
    op_input inputs[OP_CASE_INPUTS];
    int n;
    double tolerance;   /* times the usual one; 0: 1 */
    bool kinked;        /* values lie on kinks, where differences say nothing: no gradient check */
    bool not_empty;     /* an empty batch is an error: the largest of nothing */
} op_case;

extern const op_case op_cases[];
extern const int op_case_count;

/* The inputs of a case in a float dtype. batch multiplies the first dimension (0: empty). strided: the same values
 * behind each other in another order, with gaps. Floats require a gradient when asked. The values depend on the case
 * alone, and are representable in round_to. Failures are tensors in error. */
typedef struct op_variant {
    tr_dtype dtype, round_to;
    int64_t batch;
    bool strided;
} op_variant;
void op_case_inputs(const op_case *c, op_variant variant, bool requires_grad, tr_tensor **in);

#endif
