/* Parameter groups: parameters of an optimizer that learn at a pace of their own. */
#include "optim/optimizer.h"

static tr__optimized *find(const tr_optimizer *o, const tr_tensor *leaf)
{
    for (int i = 0; i < o->count; i++)
        if (o->parameters[i].leaf == leaf) return &o->parameters[i];
    return NULL;
}

tr_status tr_param_group_with(const tr_param_group_options *options)
{
    tr_optimizer *o = options->optimizer;
    const tr_tensor_list *list = options->parameters;
    if (!o || !list) return tr__fail(TR_INVALID, "tr_param_group: it takes an optimizer and parameters, not NULL");
    TR__TRY(tr_status_of(o));
    TR__TRY(tr_status_of(list));
    double scale = TR__OR(options, lr_scale, 0), decay = TR__OR(options, weight_decay, 0);
    if (!tr__is_amount(scale) || !tr__is_amount(decay))
        return tr__fail(TR_INVALID, "tr_param_group: lr_scale and weight_decay must be 0 or more, not %g and %g", scale, decay);
    if (decay > 0 && !o->setting_names[TR__DECAY])
        return tr__fail(TR_UNSUPPORTED, "tr_param_group: %s has no weight decay", o->rule->name);
    for (int i = 0; i < tr_list_count(list); i++)
        if (!find(o, tr_list_at(list, i)))
            return tr__fail(TR_NOT_FOUND, "tr_param_group: \"%s\" is not a parameter of the optimizer; nothing was changed",
                tr_list_name(list, i));
    for (int i = 0; i < tr_list_count(list); i++) {
        tr__optimized *p = find(o, tr_list_at(list, i));
        if (TR__GIVEN(options, lr_scale)) p->lr_scale = scale;
        if (TR__GIVEN(options, weight_decay)) p->weight_decay = decay;
    }
    return TR_OK;
}
