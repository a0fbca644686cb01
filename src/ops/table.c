/* The op table, from ops.def. */
#include "ops/family.h"

#include <stdio.h>

#define NONE tr__no_attrs
typedef struct tr__no_attrs {
    char none;
} tr__no_attrs;

enum { IN0 = 1, IN1 = 2, IN2 = 4, IN3 = 8, OUT0 = 1, OUT1 = 2, OUT2 = 4, OUT3 = 8 };

#define LOW TR__OP_LOW
#define LOW_FIRST TR__OP_LOW_FIRST
#define HIGH TR__OP_HIGH
#define WIDEN TR__OP_WIDEN
#define MIXED TR__OP_MIXED
#define BY_INPUT TR__OP_BY_INPUT
#define ANYWHERE TR__OP_ANYWHERE

/* The backward of an op whose gradient the op of the next row computes. */
static tr_status by_kernel(tr_backward_call *call)
{
    tr_tensor *inputs[TR_OP_MAX_INPUTS + TR_OP_MAX_OUTPUTS] = {call->grad_outputs[0]};
    int n = 1;
    for (int i = 0; i < call->n_inputs; i++)
        if (call->op->saves_inputs >> i & 1) inputs[n++] = call->inputs[i];
    for (int i = 0; i < call->n_outputs; i++)
        if (call->op->saves_outputs >> i & 1) inputs[n++] = call->outputs[i];
    call->grad_inputs[0] = tr_apply(call->op + 1, call->attrs, inputs, n, NULL);
    return TR_OK;
}

#define BACKWARD_YES(name) tr__##name##_backward
#define BACKWARD_NO(name) NULL
#define BACKWARD_KERNEL(name) by_kernel
#define ROW(name_, rule_, forward_, attrs_, backward_, in_, out_, flags_) \
    [TR__OP_##name_] = {                                           \
        .size = sizeof(tr_op),                                     \
        .name = #name_,                                            \
        .attrs_size = _Generic((attrs_ *)0, tr__no_attrs *: 0, default: sizeof(attrs_)),                              \
        .infer = tr__##rule_##_infer,                              \
        .forward = forward_,                                       \
        .backward = BACKWARD_##backward_(name_),                   \
        .saves_inputs = (in_),                                     \
        .saves_outputs = (out_),                                   \
        .flags = (flags_),                                         \
    },
#define OP_AS(name, rule, kernel, ...) ROW(name, rule, tr__##kernel##_forward, __VA_ARGS__)
#define OP(name, ...) OP_AS(name, name, name, __VA_ARGS__)
#define OP_VIEW(name, attrs) ROW(name, name, NULL, attrs, YES, 0, 0, TR__OP_VIEW)

const tr_op tr__ops[TR__OP_COUNT] = {
#include "ops/ops.def"
};

static const char *const names[TR__OP_COUNT][TR_OP_MAX_INPUTS] = {
#define OP(...)
#define OP_VIEW(...)
#define OP_INPUTS(name, ...) [TR__OP_##name] = {__VA_ARGS__},
#include "ops/ops.def"
};

const char *tr__input_name(const tr_op *op, int i, char text[TR__INPUT_NAME])
{
    const char *name = tr__op_builtin(op) && i < TR_OP_MAX_INPUTS ? names[op - tr__ops][i] : NULL;
    if (name) snprintf(text, TR__INPUT_NAME, "input '%s'", name);
    else snprintf(text, TR__INPUT_NAME, "input %d", i);
    return text;
}
