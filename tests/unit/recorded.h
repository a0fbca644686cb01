/*
 * What PyTorch computed, from tests/recorded.
 */
#ifndef TR_TESTS_RECORDED_H
#define TR_TESTS_RECORDED_H

#include <trireme/tensor.h>

/* tests/recorded/NAME.safetensors; the program ends when it cannot be read. */
tr_tensor_list *recorded(const char *name);
/* The tensor of a name; the program ends when there is none. */
tr_tensor *recorded_find(const tr_tensor_list *file, const char *format, ...) TR_PRINTF(2, 3);
/* The largest |a - b|, as a share of the largest |b|: rounding errors are those of the sums that an element came from. NaN
 * when there is one. Both are read as f64. */
double recorded_distance(const tr_tensor *a, const tr_tensor *b);

#endif
