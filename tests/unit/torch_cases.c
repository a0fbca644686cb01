#include "torch_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

tr_tensor *torch_find(const tr_tensor_list *file, const char *name, const char *what, int i)
{
    char full[256];
    snprintf(full, sizeof full, i < 0 ? "%s.%s" : "%s.%s%d", name, what, i);
    return tr_list_find(file, full);
}

void torch_compare(const char *name, const char *what, tr_tensor *got, tr_tensor *expected, double tolerance)
{
    TR_NO_GRAD;
    if (!got || tr_status_of(got) != TR_OK) fail_msg("%s: no %s: %s", name, what, tr_error_message());
    assert_int_equal(tr_numel(got), tr_numel(expected));
    got = tr_contiguous(tr_cast(got, TR_F64));
    const double *x = tr_data(got), *y = tr_data(tr_cast(expected, TR_F64));
    for (int64_t i = 0; i < tr_numel(got); i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i]))))
            fail_msg("%s: %s, element %lld: %.12g, PyTorch says %.12g", name, what, (long long)i, x[i], y[i]);
}

static void check(const tr_tensor_list *file, const torch_case *c, tr_dtype dtype, double tolerance)
{
    TR_SCOPE;
    tr_tensor *in[TORCH_CASE_INPUTS] = {NULL};
    for (int i = 0; i < TORCH_CASE_INPUTS; i++) {
        tr_tensor *t = torch_find(file, c->name, "in", i);
        if (t) in[i] = tr_dtype_is_float(tr_dtype_of(t)) ? tr_require_grad(tr_detach(tr_cast(t, dtype))) : t;
    }
    if (!in[0]) fail_msg("%s is not in the file", c->name);
    tr_tensor *out = c->run(in), *g = torch_find(file, c->name, "gout", -1);
    torch_compare(c->name, "the output", out, torch_find(file, c->name, "out", -1), tolerance);
    if (!g) return;
    if (tr_backward(out, .gradient = tr_cast(g, tr_dtype_of(out))) != TR_OK)
        fail_msg("%s: %s", c->name, tr_error_message());
    for (int i = 0; i < TORCH_CASE_INPUTS; i++) {
        tr_tensor *expected = torch_find(file, c->name, "gin", i);
        if (expected) torch_compare(c->name, "a gradient", tr_grad(in[i]), expected, tolerance);
    }
}

void torch_cases_check(const tr_tensor_list *file, const torch_case *cases, size_t n, tr_dtype dtype, double tolerance)
{
    for (size_t k = 0; k < n; k++) check(file, &cases[k], dtype, tolerance);
}

void torch_load(tr_module *module, const tr_tensor_list *list, const char *name)
{
    tr_tensor_list *state = tr_state_dict(module);
    for (int i = 0; i < tr_list_count(state); i++) {
        tr_tensor *from = torch_find(list, name, tr_list_name(state, i), -1);
        if (!from) fail_msg("%s: %s is not in the file", name, tr_list_name(state, i));
        TR_CHECK(tr_copy_into(tr_list_at(state, i), from));
    }
}

void torch_compare_gradients(tr_module *module, const tr_tensor_list *list, const char *name)
{
    tr_tensor_list *parameters = tr_parameters(module);
    for (int i = 0; i < tr_list_count(parameters); i++) {
        char what[128];
        snprintf(what, sizeof what, "g%s", tr_list_name(parameters, i));
        torch_compare(name, what, tr_grad(tr_list_at(parameters, i)), torch_find(list, name, what, -1), 1e-12);
    }
}
