/*
 * Parameters that are parts of something larger, whose other parts other ranks hold. What is told of a gradient as a whole, as
 * its norm, is summed over those ranks (optim/clip.c).
 */
#include "parallel/spread.h"

#include "comm/control.h"
#include "comm/group/agree.h"

void tr__spread_destroy(void *spread)
{
    tr__unref(((tr__spread *)spread)->group);
}

static const tr__type spread_type = {"spread", sizeof(tr__spread), tr__spread_destroy};

static tr_status add_up(void *group, tr_status own, double *sum)
{
    return tr__agree_sums(group, "norm of gradients", own, sum, 1);
}

static void give_up(void *group)
{
    tr__group_give_up(group);
}

tr__spread *tr__spread_new(const tr__type *type, tr_group *group)
{
    tr__spread *spread = tr__object_new(type);
    if (spread->object.error) return spread;
    spread->group = tr_keep(group);
    spread->add_up = add_up;
    spread->give_up = give_up;
    return spread;
}

tr_status tr__spread_over(tr__spread **place, tr_group *group)
{
    if (tr_world_size(group) == 1) return TR_OK;
    TR_SCOPE;
    tr__spread *spread = tr__spread_new(&spread_type, group);
    TR__TRY(tr_status_of(spread));
    tr__unref(*place);
    *place = tr_keep(spread);
    return TR_OK;
}

tr_status tr_mark_shard(tr_tensor *parameter, tr_group *group)
{
    if (!parameter || !group) return tr__fail(TR_INVALID, "mark_shard: it takes a parameter and a group, not NULL");
    TR__TRY(tr_status_of(parameter));
    TR__TRY(tr_status_of(group));
    if (!tr__is_parameter(parameter))
        return tr__fail(TR_INVALID, "mark_shard: the tensor %s is no parameter: a leaf that requires a gradient",
            TR__TEXT(parameter->shape));
    return tr__spread_over(&parameter->leaf->shards, group);
}
