/* Dtypes, views and broadcasting. */
#include <trireme/trireme.h>

#include <stdio.h>

int main(void)
{
    tr_tensor *a = tr_reshape(tr_arange(6, TR_F32, tr_cpu(0)), TR_SHAPE(2, 3)); /* 0 1 2 / 3 4 5 */
    tr_tensor *t = tr_transpose(a, 0, 1);                                        /* a view: [3, 2] */
    tr_tensor *row = tr_from(((float[]){10, 20}), TR_SHAPE(2));
    float sum[6];
    TR_CHECK(tr_copy_out(tr_add(t, row), sum, sizeof sum)); /* [3, 2] + [2] */
    if (sum[0] != 10 || sum[1] != 23 || sum[5] != 25) return 1;
    if (tr_data(t) != tr_data(a) || tr_is_contiguous(t) || tr_stride(t, 0) != 1 || tr_stride(t, 1) != 3) return 1;

    for (int d = 0; d < TR_DTYPE_COUNT; d++) {
        TR_SCOPE;
        tr_tensor *x = tr_cast(a, (tr_dtype)d);
        TR_CHECK(tr_status_of(x));
        char text[256];
        tr_format(x, text, sizeof text);
        printf("%s\n", text);
        if (tr_dtype_of(x) != (tr_dtype)d || tr_item(tr_slice(tr_slice(x, 0, 1, 2), 1, 0, 1)) != (d == TR_BOOL ? 1 : 3)) return 1;
    }
    tr_tensor *parts[3];
    TR_CHECK(tr_split(a, 3, 1, parts));
    tr_tensor *again = tr_cat(parts, 3, 1);
    return tr_item(tr_sum(tr_sub(again, a))) == 0 && tr_size(parts[2], -1) == 1 ? 0 : 1;
}
