#include "recorded.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <trireme/trireme.h>

tr_tensor_list *recorded(const char *name)
{
    char path[4096];
    const char *source = getenv("SOURCE");
    snprintf(path, sizeof path, "%s/tests/recorded/%s.safetensors", source ? source : ".", name);
    tr_tensor_list *list = tr_safetensors_load(path);
    TR_CHECK(tr_status_of(list));
    return list;
}

tr_tensor *recorded_find(const tr_tensor_list *file, const char *format, ...)
{
    char name[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    tr_tensor *t = tr_list_find(file, name);
    if (!t) TR_CHECK(tr_fail(TR_NOT_FOUND, "%s is not in the file", name));
    return t;
}

double recorded_distance(const tr_tensor *a, const tr_tensor *b)
{
    TR_SCOPE;
    TR_NO_GRAD;
    TR_CHECK(tr_status_of(a));
    if (tr_numel(a) != tr_numel(b)) TR_CHECK(tr_fail(TR_SHAPE, "other sizes than in the file"));
    const double *x = tr_data(tr_contiguous(tr_cast((tr_tensor *)a, TR_F64)));
    const double *y = tr_data(tr_contiguous(tr_cast((tr_tensor *)b, TR_F64)));
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < tr_numel(b); i++) {
        double difference = fabs(x[i] - y[i]);
        if (!(difference <= worst)) worst = difference; /* NaN counts */
        largest = fmax(largest, fabs(y[i]));
    }
    return largest > 0 ? worst / largest : worst;
}
