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
#define BY_INPUT TR__OP_BY_INPUT
#define ANYWHERE TR__OP_ANYWHERE

#define BACKWARD_YES(name) tr__##name##_backward
#define BACKWARD_NO(name) NULL
#define ROW(name_, attrs_, forward_, backward_, in_, out_, flags_) \
    [TR__OP_##name_] = {                                           \
        .size = sizeof(tr_op),                                     \
        .name = #name_,                                            \
        .attrs_size = _Generic((attrs_ *)0, tr__no_attrs *: 0, default: sizeof(attrs_)),                              \
        .infer = tr__##name_##_infer,                              \
        .forward = forward_,                                       \
        .backward = BACKWARD_##backward_(name_),                   \
        .saves_inputs = (in_),                                     \
        .saves_outputs = (out_),                                   \
        .flags = (flags_),                                         \
    },
#define OP(name, attrs, backward, in, out, flags) ROW(name, attrs, tr__##name##_forward, backward, in, out, flags)
#define OP_VIEW(name, attrs) ROW(name, attrs, NULL, YES, 0, 0, TR__OP_VIEW)

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
