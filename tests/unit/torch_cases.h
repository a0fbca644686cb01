/*
 * Single functions against what PyTorch recorded for them (tests/recorded/record_*.py say how): output and gradients.
 */
#ifndef TESTS_TORCH_CASES_H
#define TESTS_TORCH_CASES_H

#include <trireme/trireme.h>

enum { TORCH_CASE_INPUTS = 5 };

/* name: <name>.in0, … are the inputs in the file, NULL those that are not there. */
typedef struct torch_case {
    const char *name;
    tr_tensor *(*run)(tr_tensor **in);
} torch_case;

/* Fails the test unless every case, computed in dtype, gives what is recorded: |got - recorded| <= tolerance * (1 +
 * |recorded|), element by element. Floats require a gradient where one is recorded. */
void torch_cases_check(const tr_tensor_list *file, const torch_case *cases, size_t n, tr_dtype dtype, double tolerance);

/* The same for one tensor, called `what` of the case `name`. */
void torch_compare(const char *name, const char *what, tr_tensor *got, tr_tensor *expected, double tolerance);
/* <name>.<what> with i behind it unless it is negative; NULL when the file has none. */
tr_tensor *torch_find(const tr_tensor_list *file, const char *name, const char *what, int i);

/* Gives the module its parameters and buffers as recorded: <name>.weight, …; and compares the parameters' gradients with
 * <name>.gweight, …, in f64. */
void torch_load(tr_module *module, const tr_tensor_list *file, const char *name);
void torch_compare_gradients(tr_module *module, const tr_tensor_list *file, const char *name);

#endif
