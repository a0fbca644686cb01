/*
 * Sharded optimizers: ZeRO, stage 1 (Rajbhandari et al., SC'20). Ranks whose gradients are the same need the optimizer's state
 * once, not once each:
 *
 *   parameters  [ p0 ........ | p1 .. | p2 ............ ]   on all ranks
 *   state       [  rank 0   |  rank 1   |  rank 2     ]     equal shards of an arena, cut anywhere: updates are elementwise
 */
#include "comm/control.h"
#include "optim/optimizer.h"
#include "parallel/fully_shard.h"
#include "parallel/same_model.h"

#include <trireme/parallel.h>

#include <stdlib.h>

typedef struct sharing {
    tr__object object;
    tr_group *group; /* kept */
} sharing;

static void destroy(void *self)
{
    tr_release(((sharing *)self)->group);
}

static const tr__type sharing_type = {"sharing", sizeof(sharing), destroy};

/* Rank r's shard of a part, from its begin on. Shards begin at cache lines; the last ones may be shorter, or empty. */
static void shard_of(const tr__optimizer_part *part, int r, int ranks, int64_t *from, int64_t *to)
{
    int64_t n = part->end - part->begin, each = (n + ranks - 1) / ranks;
    each = (each + TR__ARENA_ALIGN - 1) / TR__ARENA_ALIGN * TR__ARENA_ALIGN;
    *from = r * each < n ? r * each : n;
    *to = (r + 1) * each < n ? (r + 1) * each : n;
}

static tr_status gather(void *self, const tr__optimizer_part *part, tr_tensor *flat)
{
    tr_group *group = ((sharing *)self)->group;
    int ranks = tr_world_size(group), rank = tr_rank(group);
    int64_t *counts = calloc((size_t)ranks, sizeof *counts);
    if (!counts) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int r = 0; r < ranks; r++) {
        int64_t from, to;
        shard_of(part, r, ranks, &from, &to);
        counts[r] = to - from;
    }
    tr_status status = tr_all_gather_v(group, NULL, tr__ptr(flat), counts[rank], .out_counts = counts, .dtype = flat->dtype,
        .device = tr__device_of(flat));
    free(counts);
    return status;
}

/* The state of a part becomes that of this rank's shard. */
static tr_status cut(tr_optimizer *o, tr__optimizer_part *part, int rank, int ranks)
{
    TR_SCOPE;
    int64_t from, to;
    shard_of(part, rank, ranks, &from, &to);
    tr_tensor *own[TR__STATES] = {NULL};
    for (int k = 0; k < o->n_states; k++) {
        const tr_tensor *all = part->state[k];
        own[k] = tr_empty(TR_SHAPE(to - from), .dtype = all->dtype, .device = tr__device_of(all));
        TR__TRY(tr_copy_into(own[k], tr_slice((tr_tensor *)all, 0, from, to)));
    }
    for (int k = 0; k < o->n_states; k++) {
        tr_release(part->state[k]);
        part->state[k] = tr_keep(own[k]);
    }
    part->from = part->begin + from;
    part->to = part->begin + to;
    return TR_OK;
}

static void give_up(void *self)
{
    tr__group_give_up(((sharing *)self)->group);
}

/* Each shard of a parameter would follow its own rule, and all ranks get the mixture. */
static tr_status compare(const tr_optimizer *optimizer, tr_group *group)
{
    tr_status status = optimizer ? tr_status_of(optimizer)
                                 : tr__fail(TR_INVALID, "shard_optimizer: it takes an optimizer and a group, not NULL");
    if (status == TR_OK) status = tr__shards_refuse("shard_optimizer", optimizer->list);
    if (status != TR_OK) return tr__agree(group, "shard_optimizer", status, NULL);
    tr__facts facts = {0};
    tr__tensors_say(optimizer->list, &facts);
    tr__optimizer_say(optimizer, &facts);
    tr__facts_number(&facts, "lr", tr_lr(optimizer));
    tr__facts_say(&facts, "steps in backward", "%s", optimizer->in_backward ? "on" : "off");
    return tr__agree_once(group, "shard_optimizer", TR_OK, &facts);
}

static tr_status cut_all(tr_optimizer *o, int rank, int ranks)
{
    for (int i = 0; i < o->n_parts; i++) {
        tr_status status = cut(o, &o->parts[i], rank, ranks);
        if (status != TR_OK) return tr__fail_context(status, "shard_optimizer");
    }
    return TR_OK;
}

tr_status tr_shard_optimizer_at(tr_optimizer *optimizer, tr_group *group, const char *file, int line)
{
    TR__CALLED_AT(file, line);
    TR__TRY(tr_status_of(group));
    if (!group) return tr__fail(TR_INVALID, "shard_optimizer: it takes an optimizer and a group, not NULL");
    /* What is wrong on all ranks is found after this, so that nobody waits here for one that has failed. */
    TR__TRY(compare(optimizer, group));
    if (optimizer->gather) return tr__fail(TR_STATE, "shard_optimizer: the optimizer is sharded already");
    TR__TRY(tr__in_backward_refuse(optimizer, "shard_optimizer", "its ranks exchange parameters in tr_step()"));
    if (optimizer->rule->whole)
        return tr__fail(TR_UNSUPPORTED, "shard_optimizer: %s looks at whole parameters, which shards would cut; elementwise "
            "rules (sgd, adam, lion, ...) can be sharded", optimizer->rule->name);
    if (tr_world_size(group) == 1) return TR_OK;
    TR_SCOPE;
    sharing *shared = tr__object_new(&sharing_type);
    tr_status status = tr_status_of(shared);
    if (status == TR_OK) {
        shared->group = tr_keep(group);
        status = cut_all(optimizer, tr_rank(group), tr_world_size(group));
    }
    /* Where it fails, on any rank, the state is cut and nobody puts it together: such an optimizer is of no use any more. */
    if (tr__agree(group, "shard_optimizer", status, NULL) != TR_OK) return tr__object_break(optimizer);
    optimizer->gather = gather;
    optimizer->give_up = give_up;
    optimizer->sharing = tr_keep(shared);
    return TR_OK;
}
