/* Optimizers whose parameters live on several workers: what drives their owners. */
#include "parallel/dist/rpc.h"

#include "tensor/list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct owner {
    int worker;
    int64_t number; /* the optimizer's, there; 0: none yet */
} owner;

struct tr_dist_optimizer {
    tr__object object;
    tr_rpc *rpc; /* kept */
    int count;
    int *owner_of; /* of each parameter: in owners */
    owner *owners; /* in the order of their first parameters */
    int n_owners;
};

static void destroy(void *self)
{
    tr_dist_optimizer *o = self;
    TR_SCOPE;
    TR__KEEP_ERROR; /* not what is told to workers that died */
    tr__dist_worker *w = o->rpc && !tr__error_of(o->rpc) ? tr__rpc_user(o->rpc) : NULL;
    for (int i = 0; w && i < o->n_owners; i++) {
        tr_value number = tr_value_i64(o->owners[i].number);
        if (o->owners[i].number) (void)!tr_status_of(tr__dist_order_to(w, o->owners[i].worker, TR__DIST_DROP, &number, 1));
    }
    free(o->owner_of);
    free(o->owners);
    tr__unref(o->rpc);
}

static const tr__type optimizer_type = {"dist optimizer", sizeof(tr_dist_optimizer), destroy};

/* ---- Orders to all owners ---------------------------------------------------------------------------------------------- */

/* Sends each owner an order with its number in front of n values, and waits for all; what this worker owns is done in this thread,
 * while the others are at theirs. The first failure by their order, this worker's before. results: [n_owners], of the innermost
 * scope; or NULL. */
static tr_status order_all(const tr_dist_optimizer *o, tr__dist_order order, const tr_value *values, int n, tr_value *results)
{
    tr__dist_worker *w = tr__dist_worker_of(o->rpc);
    if (!w) return TR_STATE;
    tr_future **futures = calloc((size_t)o->n_owners + 1, sizeof *futures); /* NULL: this worker's */
    if (!futures) return tr__fail(TR_NO_MEMORY, "dist optimizer: out of memory");
    tr_value all[4], result;
    int here = -1;
    for (int i = 0; i < n; i++) all[1 + i] = values[i];
    for (int i = 0; i < o->n_owners; i++) {
        all[0] = tr_value_i64(o->owners[i].number);
        if (o->owners[i].worker == w->dist.port.self)
            here = i;
        else
            futures[i] = tr__dist_order_to(w, o->owners[i].worker, order, all, 1 + n);
    }
    if (here >= 0) all[0] = tr_value_i64(o->owners[here].number);
    tr_status own = here >= 0 ? tr__dist_obey(w, order, all, 1 + n, results ? &results[here] : &result) : TR_OK;
    tr__error *why = own == TR_OK ? NULL : tr__error_take();
    tr_status status = tr_future_wait_all(futures, o->n_owners);
    for (int i = 0; i < o->n_owners && results && status == TR_OK; i++)
        if (i != here) results[i] = *tr_future_value(futures[i]);
    free(futures);
    return why ? tr__error_restore(why) : status;
}

/* The same to all, when nobody asks what came back. */
static tr_status tell_all(const tr_dist_optimizer *o, tr__dist_order order, const tr_value *values, int n)
{
    TR_SCOPE;
    return order_all(o, order, values, n, NULL);
}

static tr_status check(const char *what, const tr_dist_optimizer *o)
{
    return o ? tr_status_of(o) : tr__fail(TR_INVALID, "%s: the optimizer is NULL", what);
}

/* ---- Making -------------------------------------------------------------------------------------------------------------- */

static tr_status find_owners(tr_dist_optimizer *o, tr_rref *const *parameters)
{
    o->owner_of = calloc((size_t)o->count, sizeof *o->owner_of);
    o->owners = calloc((size_t)o->count, sizeof *o->owners);
    if (!o->owner_of || !o->owners) return tr__fail(TR_NO_MEMORY, "dist optimizer: out of memory");
    for (int i = 0; i < o->count; i++) {
        if (!parameters[i]) return tr__fail(TR_INVALID, "dist optimizer: parameter %d is NULL", i);
        TR__TRY(tr_status_of(parameters[i]));
        int worker = tr_rref_owner(parameters[i]), at = 0;
        while (at < o->n_owners && o->owners[at].worker != worker) at++;
        if (at == o->n_owners) o->owners[o->n_owners++] = (owner){.worker = worker};
        o->owner_of[i] = at;
    }
    return TR_OK;
}

/* The order that an owner gets: kind, settings, then names and references. */
static tr_future *make_at(const tr_dist_optimizer *o, int at, tr_rref *const *parameters, int64_t kind, tr_bytes settings)
{
    tr_value *values = calloc(2 * (size_t)o->count + 2, sizeof *values);
    char(*names)[16] = calloc((size_t)o->count, sizeof *names);
    tr_future *future = NULL;
    if (values && names) {
        int n = 0;
        values[n++] = tr_value_i64(kind);
        values[n++] = tr_value_bytes(settings);
        for (int i = 0; i < o->count; i++) {
            if (o->owner_of[i] != at) continue;
            snprintf(names[i], sizeof *names, "%d", i);
            values[n++] = tr_value_string(names[i]);
            values[n++] = tr_value_rref(parameters[i]);
        }
        future = tr__dist_order_to(tr__dist_worker_of(o->rpc), o->owners[at].worker, TR__DIST_MAKE, values, n);
    }
    free(values);
    free(names);
    return future ? future : tr__object_fail(&tr__future_type, TR_NO_MEMORY, "dist optimizer: out of memory");
}

static tr_status set_up(tr_dist_optimizer *o, tr_rref *const *parameters, const tr_dist_rule *rule)
{
    if (!tr__dist_worker_of(o->rpc)) return tr_status_of(o->rpc) == TR_OK ? TR_STATE : tr_status_of(o->rpc);
    if (o->count < 0) return TR_STATE; /* why, is the thread's latest failure */
    if (o->count < 1) return tr__fail(TR_INVALID, "dist optimizer: there are no parameters to optimize");
    TR__TRY(find_owners(o, parameters));
    double settings[TR__DIST_SETTINGS];
    int n = tr__dist_rule_settings(rule, settings);
    if (n < 0) return TR_INVALID;
    tr_status status = TR_OK;
    for (int at = 0; at < o->n_owners && status == TR_OK; at++) {
        tr_future *made = make_at(o, at, parameters, rule->kind, (tr_bytes){settings, (size_t)n * sizeof *settings});
        status = tr_future_wait(made);
        if (status == TR_OK) o->owners[at].number = tr_future_i64(made);
    }
    return status;
}

tr_dist_optimizer *tr_dist_optimizer_new(tr_rpc *rpc, tr_rref *const *parameters, int count, tr_dist_rule rule)
{
    tr_dist_optimizer *o = tr__object_new(&optimizer_type);
    if (o->object.error) return o;
    o->rpc = tr_keep(rpc);
    o->count = count;
    TR_SCOPE;
    if (set_up(o, parameters, &rule) != TR_OK) tr__object_break(o);
    return o;
}

/* ---- Driving it ---------------------------------------------------------------------------------------------------------- */

tr_status tr_dist_step(tr_dist_optimizer *o, tr_dist_context *c)
{
    TR__TRY(check("tr_dist_step", o));
    TR__TRY(tr__dist_check_context("tr_dist_step", c));
    tr_value values[] = {tr_value_i64(c->id.worker), tr_value_i64(c->id.number)};
    return tell_all(o, TR__DIST_STEP, values, 2);
}

tr_status tr_dist_step_in_backward(tr_dist_optimizer *o, tr_dist_context *c)
{
    TR__TRY(check("tr_dist_step_in_backward", o));
    TR__TRY(tr__dist_check_context("tr_dist_step_in_backward", c));
    for (int i = 0; i < o->n_owners; i++)
        if (o->owners[i].worker != c->dist->port.self) tr__dist_touches(c, o->owners[i].worker); /* it is to hear of the end */
    tr_value values[] = {tr_value_i64(c->id.worker), tr_value_i64(c->id.number)};
    return tell_all(o, TR__DIST_EARLY, values, 2);
}

tr_status tr_dist_set_lr(tr_dist_optimizer *o, double lr)
{
    TR__TRY(check("tr_dist_set_lr", o));
    tr_value value = tr_value_f64(lr);
    return tell_all(o, TR__DIST_LR, &value, 1);
}

/* The sum of squares over all owners, in their order. */
static tr_status joint_norm(const tr_dist_optimizer *o, const tr_value *context, double *norm)
{
    TR_SCOPE;
    tr_value values[] = {context[0], context[1], tr_value_i64(o->n_owners)};
    tr_value *squares = calloc((size_t)o->n_owners, sizeof *squares);
    if (!squares) return tr__fail(TR_NO_MEMORY, "dist optimizer: out of memory");
    tr_status status = order_all(o, TR__DIST_NORM, values, 3, squares);
    double total = 0;
    for (int i = 0; i < o->n_owners && status == TR_OK; i++) total += squares[i].kind == TR_VALUE_F64 ? squares[i].f64 : (double)NAN;
    free(squares);
    *norm = sqrt(total);
    return status;
}

tr_status tr_dist_clip_grad_norm(tr_dist_optimizer *o, tr_dist_context *c, double max_norm, double *norm)
{
    TR__TRY(check("tr_dist_clip_grad_norm", o));
    TR__TRY(tr__dist_check_context("tr_dist_clip_grad_norm", c));
    if (!(max_norm > 0))
        return tr__fail(TR_INVALID, "tr_dist_clip_grad_norm: max_norm must be more than 0, not %g", max_norm);
    tr_value values[3] = {tr_value_i64(c->id.worker), tr_value_i64(c->id.number)};
    double total = 0;
    TR__TRY(joint_norm(o, values, &total));
    if (norm) *norm = total;
    if (!isfinite(total))
        return tr__fail(TR_INVALID, "tr_dist_clip_grad_norm: the norm is %g, nothing was changed", total);
    double factor = max_norm / (total + 1e-6); /* as tr_clip_grad_norm() */
    values[2] = tr_value_f64(factor);
    return factor < 1 ? tell_all(o, TR__DIST_SCALE, values, 3) : TR_OK;
}

/* ---- Its state ------------------------------------------------------------------------------------------------------------ */

static tr_status gather_state(const tr_dist_optimizer *o, tr_tensor_list *state)
{
    TR_SCOPE;
    tr_value *parts = calloc((size_t)o->n_owners, sizeof *parts);
    if (!parts) return tr__fail(TR_NO_MEMORY, "dist optimizer: out of memory");
    tr_status status = order_all(o, TR__DIST_STATE, NULL, 0, parts);
    for (int i = 0; i < o->n_owners && status == TR_OK; i++) {
        const tr_tensor_list *part = parts[i].kind == TR_VALUE_TENSORS ? parts[i].tensors : NULL;
        if (!part) status = tr__fail(TR_FORMAT, "dist optimizer: worker %d gave no state", o->owners[i].worker);
        for (int k = 0; status == TR_OK && k < tr_list_count(part); k++)
            status = tr_list_add(state, tr_list_name(part, k), tr_list_at(part, k));
    }
    free(parts);
    return status;
}

tr_tensor_list *tr_dist_optimizer_state(tr_dist_optimizer *o)
{
    if (check("tr_dist_optimizer_state", o) != TR_OK) return tr__object_failed(&tr__list_type);
    tr_tensor_list *state = tr_list_new();
    return gather_state(o, state) == TR_OK ? state : tr__object_failed(&tr__list_type);
}

/* Sends an owner what is its own of a state. */
static tr_status load_at(const tr_dist_optimizer *o, int at, const tr_tensor_list *state)
{
    TR_SCOPE;
    tr_tensor_list *part = tr_list_new();
    for (int i = 0; i < tr_list_count(state); i++) {
        char *dot;
        long parameter = strtol(tr_list_name(state, i), &dot, 10);
        if (*dot != '.' || parameter < 0 || parameter >= o->count)
            return tr__fail(TR_NOT_FOUND, "tr_dist_optimizer_load: \"%s\" belongs to none of the %d parameters",
                tr_list_name(state, i), o->count);
        if (o->owner_of[parameter] == at) TR__TRY(tr_list_add(part, tr_list_name(state, i), tr_list_at(state, i)));
    }
    tr_value values[] = {tr_value_i64(o->owners[at].number), tr_value_tensors(part)};
    return tr_future_wait(tr__dist_order_to(tr__dist_worker_of(o->rpc), o->owners[at].worker, TR__DIST_LOAD, values, 2));
}

tr_status tr_dist_optimizer_load(tr_dist_optimizer *o, const tr_tensor_list *state)
{
    TR__TRY(check("tr_dist_optimizer_load", o));
    TR__TRY(tr_status_of(state));
    for (int at = 0; at < o->n_owners; at++) TR__TRY(load_at(o, at, state));
    return TR_OK;
}
