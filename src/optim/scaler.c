/* Gradient scaling: see <trireme/optim.h>. */
#include "optim/optimizer.h"

#include <trireme/ops.h>

#include <math.h>
#include <stdlib.h>

/* An optimizer whose gradients have been divided since the last update. */
typedef struct unscaled {
    tr_optimizer *optimizer; /* a reference */
    bool finite, stepped;
} unscaled;

struct tr_grad_scaler {
    tr__object object;
    double scale, growth, backoff;
    int64_t interval, tracker; /* steps since the scale changed */
    unscaled *unscaled;
    int count;
};

static void forget(tr_grad_scaler *s)
{
    for (int i = 0; i < s->count; i++) tr__unref(s->unscaled[i].optimizer);
    s->count = 0;
}

static void destroy(void *self)
{
    tr_grad_scaler *s = self;
    forget(s);
    free(s->unscaled);
}

static const tr__type scaler_type = {"grad scaler", sizeof(tr_grad_scaler), destroy};

tr_grad_scaler *tr_grad_scaler_new_with(const tr_grad_scaler_options *o)
{
    double scale = TR__OR(o, scale, 65536), growth = TR__OR(o, growth, 2), backoff = TR__OR(o, backoff, 0.5);
    int64_t interval = TR__OR(o, interval, 2000);
    if (!(scale > 0 && isfinite(scale) && growth >= 1 && isfinite(growth) && backoff > 0 && backoff < 1 && interval > 0))
        return tr__object_fail(&scaler_type, TR_INVALID, "grad_scaler: scale and interval must be more than 0, growth 1 or more "
            "and backoff between 0 and 1, not %g, %lld, %g and %g", scale, (long long)interval, growth, backoff);
    tr_grad_scaler *s = tr__object_new(&scaler_type);
    if (s->object.error) return s;
    s->scale = scale;
    s->growth = growth;
    s->backoff = backoff;
    s->interval = interval;
    return s;
}

static tr_status check(const char *what, const tr_grad_scaler *s, const tr_optimizer *o)
{
    if (!s || !o) return tr__fail(TR_INVALID, "%s: it takes a scaler and an optimizer, not NULL", what);
    TR__TRY(tr_status_of(s));
    TR__TRY(tr_status_of(o));
    return tr__in_backward_refuse(o, what, "it must see all gradients before any of them is used");
}

tr_tensor *tr_scale_loss(tr_grad_scaler *s, tr_tensor *loss)
{
    if (!s) return tr__tensor_fail(TR_INVALID, "tr_scale_loss: the scaler is NULL");
    if (tr__error_of(s)) return tr__tensor_pass(s);
    TR__REQUIRE("tr_scale_loss", "the loss", loss);
    return tr_affine(loss->dtype == TR_F64 ? loss : tr_cast(loss, TR_F32), s->scale, 0);
}

static unscaled *find(const tr_grad_scaler *s, const tr_optimizer *o)
{
    for (int i = 0; i < s->count; i++)
        if (s->unscaled[i].optimizer == o) return &s->unscaled[i];
    return NULL;
}

/* own: what is wrong here. Ranks that have other parts of the parameters hear of it. */
static tr_status unscale(tr_grad_scaler *s, tr_optimizer *o, tr_status own)
{
    unscaled *more = own == TR_OK ? realloc(s->unscaled, ((size_t)s->count + 1) * sizeof *more) : NULL;
    if (more) s->unscaled = more;
    else if (own == TR_OK) own = tr__fail(TR_NO_MEMORY, "grad_scaler: out of memory");
    double squares;
    const char *worst;
    TR__TRY(tr__grad_squares(o, own, &squares, &worst));
    bool finite = isfinite(squares);
    if (finite) TR__TRY(tr__grad_multiply(o, 1 / s->scale));
    s->unscaled[s->count++] = (unscaled){tr__ref(o), finite, false};
    return TR_OK;
}

tr_status tr_unscale_grad_at(tr_grad_scaler *s, tr_optimizer *o, bool *finite, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    tr_status status = check("tr_unscale_grad", s, o);
    bool divided = s && find(s, o);
    if (status == TR_OK && divided)
        status = tr__fail(TR_STATE, "tr_unscale_grad: the gradients are divided already: call tr_update_scale() after each step");
    TR__TRY(o && !divided ? unscale(s, o, status) : status); /* the others have divided theirs, too */
    if (finite) *finite = find(s, o)->finite;
    return TR_OK;
}

tr_status tr_scaled_step_at(tr_grad_scaler *s, tr_optimizer *o, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    tr_status status = check("tr_scaled_step", s, o);
    if (o && (!s || !find(s, o))) status = unscale(s, o, status);
    if (status != TR_OK) return o ? tr__optimizer_tell(o, status) : status;
    unscaled *found = find(s, o);
    if (found->stepped) return tr__fail(TR_STATE, "tr_scaled_step: the optimizer has been stepped already: call "
        "tr_update_scale() after each step");
    if (found->finite) TR__TRY(tr_step(o));
    found->stepped = true;
    return TR_OK;
}

bool tr_update_scale(tr_grad_scaler *s)
{
    if (!s || tr__error_of(s)) return false;
    bool finite = true;
    for (int i = 0; i < s->count; i++) finite &= s->unscaled[i].finite;
    forget(s);
    s->tracker = finite ? s->tracker + 1 : 0;
    if (!finite) s->scale *= s->backoff;
    if (s->tracker < s->interval) return finite;
    s->tracker = 0;
    if ((float)(s->scale * s->growth) < INFINITY) s->scale *= s->growth;
    return finite;
}

double tr_grad_scale(const tr_grad_scaler *s)
{
    return s && !tr__error_of(s) ? s->scale : 0;
}

tr_tensor_list *tr_grad_scaler_state(const tr_grad_scaler *s)
{
    if (!s) return tr__object_fail(&tr__list_type, TR_INVALID, "tr_grad_scaler_state: the scaler is NULL");
    if (tr__error_of(s)) return tr__object_pass(&tr__list_type, s);
    tr_tensor_list *state = tr_list_new();
    if (tr_list_add(state, "scale", tr_scalar(s->scale, TR_F64)) != TR_OK ||
        tr_list_add(state, "growth_tracker", tr_scalar((double)s->tracker, TR_I64)) != TR_OK)
        return tr__object_failed(&tr__list_type);
    return state;
}

tr_status tr_grad_scaler_load(tr_grad_scaler *s, const tr_tensor_list *state)
{
    if (!s || !state) return tr__fail(TR_INVALID, "tr_grad_scaler_load: it takes a scaler and its state, not NULL");
    TR__TRY(tr_status_of(s));
    TR__TRY(tr_status_of(state));
    const tr_tensor *scale = tr_list_find(state, "scale"), *tracker = tr_list_find(state, "growth_tracker");
    if (!scale || !tracker) return tr__fail(TR_NOT_FOUND, "tr_grad_scaler_load: there is no \"%s\"",
        scale ? "growth_tracker" : "scale");
    double value = tr_item(scale), steps = tr_item(tracker);
    if (!(value > 0 && isfinite(value) && steps >= 0 && steps <= 0x1p53))
        return tr__fail(TR_FORMAT, "tr_grad_scaler_load: nothing was changed, scale is %g and growth_tracker %g", value, steps);
    s->scale = value;
    s->tracker = (int64_t)steps;
    return TR_OK;
}
