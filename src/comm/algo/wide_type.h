/*
 * Partial results that ranks send each other need a type in which nothing is lost: sums and products of f16 and bf16 go
 * as f32, sums for averages of i32 as i64 and of u8 as i32. They are rounded once, at the end.
 */
#ifndef TR_COMM_ALGO_WIDE_TYPE_H
#define TR_COMM_ALGO_WIDE_TYPE_H

#include <trireme/comm.h>

/* The type in which a reduction is folded. */
tr_dtype tr__wide_type(tr_dtype dtype, tr_reduce_op op);
/* From dtype to its wide type. */
void tr__widen(tr_dtype dtype, tr_reduce_op op, const void *from, void *to, int64_t count);
/* A result, of which averages are still sums over so many ranks, from its wide type to dtype. from and to may be the
 * same memory when the types are the same. */
void tr__narrow(tr_dtype dtype, tr_reduce_op op, int ranks, const void *from, void *to, int64_t count);

#endif
