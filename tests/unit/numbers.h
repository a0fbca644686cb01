/*
 * Elements of any type as doubles, for tests.
 */
#ifndef TR_TESTS_NUMBERS_H
#define TR_TESTS_NUMBERS_H

#include <trireme/base.h>

#include <stdint.h>

double get(tr_dtype dtype, const void *memory, int64_t i);
void put(tr_dtype dtype, void *memory, int64_t i, double value);

#endif
