/* docs/data.md: a dataset of a program's own, loaded by two threads. */
#include <trireme/trireme.h>

/* Sample i is a point around one of three places, and which of them. */
static tr_status point(const tr_sample_call *call, tr_sample *out)
{
    double spread = *(const double *)call->user;
    int64_t place = call->index % 3;
    out->x = tr_affine(tr_randn(call->seed, TR_SHAPE(2)), spread, (double)place); /* [2] */
    out->y = tr_scalar((double)place, TR_I64);
    return TR_OK;
}

int main(void)
{
    double spread = 0.1;
    tr_dataset *set = tr_dataset_new(1000, point, .user = &spread, .name = "points");
    tr_loader *loader = tr_loader_new(set, .batch = 64, .workers = 2, .shuffle = true, .seed = 1);
    for (int epoch = 0; epoch < 2; epoch++) {
        TR_CHECK(tr_loader_set_epoch(loader, epoch));
        tr_batch b;
        tr_status s;
        while ((s = tr_loader_next(loader, &b)) == TR_OK) {
            TR_SCOPE;
            if (tr_size(b.x, 0) != b.count || tr_ndim(b.y) != 1) return 1; /* b.x: [count, 2], b.y: [count] */
        }
        TR_CHECK_END(s);
    }
    return 0;
}
