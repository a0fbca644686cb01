/* A mask that failed to be made must fail the attention that uses it, not train without a mask. NULL means "no mask". */
#include <trireme/trireme.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    tr_tensor *q = tr_randn(1, TR_SHAPE(2, 4, 8, 16)); /* [batch, heads, seq, dim] */
    tr_tensor *a = tr_ones(TR_SHAPE(8, 8), .dtype = TR_BOOL), *b = tr_ones(TR_SHAPE(3, 8), .dtype = TR_BOOL);
    tr_tensor *mask = tr_mul(a, b); /* shapes do not fit: an object in error */

    tr_tensor *out = tr_attention(q, q, q, .mask = mask);
    tr_tensor *loss = tr_sum(tr_mul(out, out));
    tr_status status = tr_status_of(loss);
    printf("%s: %s\n", tr_status_name(status), tr_error_message());
    if (status != TR_SHAPE || !strstr(tr_error_message(), "[8, 8]") || !strstr(tr_error_message(), "[3, 8]")) return 1;

    TR_CHECK(tr_status_of(tr_attention(q, q, q, .mask = NULL)));
    return 0;
}
