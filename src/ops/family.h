/* What the family files define: the functions that the rows of ops.def refer to. */
#ifndef TR_OPS_FAMILY_H
#define TR_OPS_FAMILY_H

#include "base/given.h"
#include "ops/op.h"

#define DECLARE_YES(name) tr_status tr__##name##_backward(tr_backward_call *call);
#define DECLARE_NO(name)
#define DECLARE_KERNEL(name)
#define OP_AS(name, rule, kernel, attrs, backward, in, out, flags) \
    tr_status tr__##rule##_infer(tr_op_call *call);                \
    tr_status tr__##kernel##_forward(tr_op_call *call);            \
    DECLARE_##backward(name)
#define OP(name, ...) OP_AS(name, name, name, __VA_ARGS__)
#define OP_VIEW(name, attrs)                        \
    tr_status tr__##name##_infer(tr_op_call *call); \
    DECLARE_YES(name)
#include "ops/ops.def"
#undef DECLARE_YES
#undef DECLARE_NO
#undef DECLARE_KERNEL

/* The backward of an op of which input 0 alone has a gradient: that, of g, which has arrived, of x and y, input and output 0 where
 * the row saves them, and of a, the attributes. */
#define TR__BACKWARD(name, attrs_type, gradient)                                             \
    tr_status tr__##name##_backward(tr_backward_call *call)                                  \
    {                                                                                        \
        tr_tensor *g = call->grad_outputs[0], *x = call->inputs[0], *y = call->outputs[0];   \
        const attrs_type *a = call->attrs;                                                   \
        (void)x, (void)y, (void)a;                                                           \
        call->grad_inputs[0] = gradient;                                                     \
        return TR_OK;                                                                        \
    }

#endif
