/* Recompute: what users see of segments (ops/segment.h). */
#include "ops/segment.h"

#include <trireme/autograd.h>

tr_tensor *tr_checkpoint(tr_checkpoint_function f, tr_tensor *const *inputs, int n, void *user)
{
    if (!f || n < 0 || (n > 0 && !inputs))
        return tr__tensor_fail(TR_INVALID, "checkpoint: it takes a function and its %d inputs, not NULL", n);
    for (int i = 0; i < n; i++)
        if (inputs[i] && tr__bad(inputs[i])) return tr__tensor_pass(inputs[i]);
    tr_tensor *y = NULL;
    (void)!tr__segment_run((tr__segment_code){.one = f, .user = user}, inputs, n, &y, 1);
    return y;
}

bool tr_recomputing(void)
{
    return tr__segment_replays();
}
