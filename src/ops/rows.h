/*
 * Tensors as rows, for reference kernels: one dimension is the row, the others number the rows. Rows are read and
 * written as f64, in blocks, whatever the dtype and strides.
 */
#ifndef TR_OPS_ROWS_H
#define TR_OPS_ROWS_H

#include "ops/gemm.h"

enum { TR__ROW_BLOCK = 512 };

typedef struct tr__rows {
    tr_dtype dtype;
    char *data;
    int64_t n, stride; /* of a row */
    tr__axis others;   /* others.n rows */
} tr__rows;

/* dim -1: the last. Of NULL none, whose data is NULL. */
tr__rows tr__rows_of(const tr_tensor *x, int dim);

/* Elements first to first + n - 1 of row r; n is at most TR__ROW_BLOCK. */
void tr__row_read(const tr__rows *x, int64_t r, int64_t first, int64_t n, double *to);
void tr__row_write(const tr__rows *x, int64_t r, int64_t first, int64_t n, const double *from);
/* The same of integers and bool, whole. */
void tr__row_read_i64(const tr__rows *x, int64_t r, int64_t first, int64_t n, int64_t *to);
void tr__row_write_i64(const tr__rows *x, int64_t r, int64_t first, int64_t n, const int64_t *from);
/* How many elements there are from first on, at most a block. */
static inline int64_t tr__row_block(const tr__rows *x, int64_t first)
{
    return x->n - first < TR__ROW_BLOCK ? x->n - first : TR__ROW_BLOCK;
}
/* log(sum(exp(x))) of row r, without overflow, as the row's largest number and what is to be added to it: where that is large,
 * their sum would keep nothing of the rest. */
typedef struct tr__log_sum_exp {
    double top, rest;
} tr__log_sum_exp;
tr__log_sum_exp tr__row_log_sum_exp(const tr__rows *x, int64_t r);

/* Elements first to first + n - 1 of a vector, or as many of `otherwise` where there is none. */
void tr__vector_read(const tr_tensor *t, int64_t first, int64_t n, double otherwise, double *to);
/* Writes them, or adds to what is there; to no vector nothing. */
void tr__vector_put(tr_tensor *t, int64_t first, int64_t n, const double *values, bool accumulate);

/* Rows in a piece of work that is worth another thread. */
int64_t tr__row_grain(int64_t elements_per_row);

/* The dimensions of x in the mask, as one axis. */
tr__axis tr__axis_in(const tr_tensor *x, uint32_t dims);

#endif
