#include "dist_ranks.h"

void serve_or(rank *r, void (*body)(rank *r, dist_worker *w))
{
    dist_worker w;
    OK(dist_begin(&w, r->group));
    if (r->number == 0) {
        TR_SCOPE;
        body(r, &w);
    }
    OK(tr_barrier(r->group));
    OK(tr_rpc_stop(w.rpc));
}

void make_twins(tr_module **nets)
{
    for (int i = 0; i < DIST_WORKERS; i++) nets[i] = dist_net(i);
}

void check_grads(rank *r, dist_worker *w, tr_module *const *nets)
{
    for (int i = 0; i < DIST_WORKERS; i++)
        for (int k = 0; k < DIST_PARAMETERS; k++) {
            tr_tensor *want = tr_grad(tr_list_at(tr_parameters(nets[i]), k)), *got = dist_fetch_grad(w, i, k);
            if (!want) CHECK(tr_status_of(got) == TR_NOT_FOUND);
            if (want) CHECK(dist_difference(got, want) < 1e-12);
        }
}
