/* Samplers: which samples a rank takes in an epoch, and in which order. */
#include "data/sampler.h"

#include "base/given.h"
#include "base/rng.h"
#include "base/share.h"
#include "comm/group/agree.h"

#include <inttypes.h>
#include <stdlib.h>

/* The samples in an order that all ranks agree on, made as long as a multiple of world_size or cut to one: rank r takes
 * numbers r, r + world_size, … of that; or cut to whole batches, of each of which it takes a stretch. */
struct tr_sampler {
    tr__object object;
    int64_t count;
    tr_group *group;             /* a reference; NULL: rank and world size were given as numbers */
    int rank, world_size;
    bool shuffle;
    uint64_t seed;
    int64_t epoch, times_set;    /* what tr_sampler_set_epoch() said last, and how often it was called */
    int64_t length;              /* this rank's */
    int64_t batch, first, share; /* this rank's part of a batch: [first, first + share); batch 0: every world_size-th */
};

static void destroy(void *self)
{
    tr_release(((tr_sampler *)self)->group);
}

static const tr__type sampler_type = {"sampler", sizeof(tr_sampler), destroy};

static tr_status take_stretches(tr_sampler *s, int64_t batch)
{
    if (batch < s->world_size)
        return tr__fail(TR_INVALID, "distributed_sampler: a batch of %" PRId64 " cannot be shared out over %d ranks", batch,
            s->world_size);
    s->batch = batch;
    s->first = tr__share_begin(batch, s->rank, s->world_size);
    s->share = tr__share_begin(batch, s->rank + 1, s->world_size) - s->first;
    s->length = s->count / batch * s->share;
    return TR_OK;
}

/* Ranks that divide different orders would learn from some samples twice and from others never. */
static tr_status compare(const tr_sampler *s, const tr_distributed_sampler_options *o, tr_status own)
{
    tr__facts facts = {0};
    tr__facts_say(&facts, "count", "%" PRId64, s->count);
    tr__facts_say(&facts, "order", "%s", s->shuffle ? "shuffled" : "by index");
    if (s->shuffle) tr__facts_say(&facts, "seed", "%" PRIu64, s->seed);
    tr__facts_say(&facts, "global_batch", "%" PRId64, o->global_batch);
    tr__facts_say(&facts, "drop_last", "%s", o->drop_last ? "true" : "false");
    return tr__agree_once(s->group, "distributed_sampler", own, &facts);
}

static tr_status fill(tr_sampler *s, const tr_distributed_sampler_options *o)
{
    s->count = o->count;
    s->rank = o->rank;
    s->world_size = TR__OR(o, world_size, 1);
    if (o->group) {
        TR__TRY(tr_status_of(o->group));
        s->group = tr_keep(o->group);
        s->rank = tr_rank(o->group);
        s->world_size = tr_world_size(o->group);
    }
    if (s->world_size < 1 || s->rank < 0 || s->rank >= s->world_size)
        return tr__fail(TR_INVALID, "distributed_sampler: no rank %d in a world of %d", s->rank, s->world_size);
    s->shuffle = !o->in_order;
    s->seed = o->seed;
    tr_status own = TR_OK;
    if (s->count < 0) own = tr__fail(TR_INVALID, "distributed_sampler: the count must be 0 or more, not %" PRId64, s->count);
    TR__TRY(s->group ? compare(s, o, own) : own);
    if (o->global_batch) return take_stretches(s, o->global_batch);
    s->length = s->count / s->world_size;
    if (!o->drop_last && s->count % s->world_size) s->length++;
    return TR_OK;
}

tr_sampler *tr_distributed_sampler_with(const tr_distributed_sampler_options *options)
{
    tr_sampler *sampler = tr__object_new(&sampler_type);
    if (sampler->object.error) return sampler;
    TR__CALLED_AT(options->file, options->line);
    if (fill(sampler, options) != TR_OK) tr__object_break(sampler);
    return sampler;
}

static tr_status check(const char *what, const tr_sampler *sampler)
{
    if (!sampler) return tr__fail(TR_INVALID, "%s: the sampler is NULL", what);
    return tr_status_of(sampler);
}

tr_status tr_sampler_set_epoch(tr_sampler *sampler, int64_t epoch)
{
    TR__TRY(check("sampler_set_epoch", sampler));
    if (epoch < 0) return tr__fail(TR_INVALID, "sampler_set_epoch: epochs count from 0, not %" PRId64, epoch);
    sampler->epoch = epoch;
    sampler->times_set++;
    return TR_OK;
}

int64_t tr_sampler_length(const tr_sampler *sampler)
{
    return sampler && !sampler->object.error ? sampler->length : 0;
}

int64_t tr_sampler_duplicates(const tr_sampler *sampler)
{
    if (!sampler || sampler->object.error || sampler->batch) return 0;
    int64_t own = 0; /* how many of rank, rank + world_size, … are below count */
    if (sampler->rank < sampler->count) own = (sampler->count - 1 - sampler->rank) / sampler->world_size + 1;
    return own < sampler->length ? sampler->length - own : 0;
}

int64_t tr__sampler_count(const tr_sampler *sampler)
{
    return sampler->count;
}

tr__sampler_ranks tr__sampler_ranks_of(const tr_sampler *sampler)
{
    return (tr__sampler_ranks){sampler->group, sampler->rank, sampler->world_size};
}

int64_t tr__sampler_epoch(const tr_sampler *sampler, int64_t *times_set)
{
    *times_set = sampler->times_set;
    return sampler->epoch;
}

/* 0 … n-1 in a random order (Fisher and Yates), the same on every machine. */
static void shuffle(int64_t *order, int64_t n, uint64_t key)
{
    for (int64_t i = n - 1; i > 0; i--) {
        tr__philox r = tr__philox_at(key, 0, (uint64_t)i);
        uint64_t word = (uint64_t)r.word[0] << 32 | r.word[1];
        int64_t k = (int64_t)((unsigned __int128)word * (uint64_t)(i + 1) >> 64), moved = order[i];
        order[i] = order[k];
        order[k] = moved;
    }
}

/* Where in the order the i-th sample of this rank is; past the end the first come again. */
static int64_t place_of(const tr_sampler *s, int64_t i)
{
    if (s->batch) return i / s->share * s->batch + s->first + i % s->share;
    return (s->rank + i * s->world_size) % s->count;
}

tr_status tr__sampler_draw(const tr_sampler *s, int64_t epoch, int64_t *out)
{
    int64_t *order = NULL;
    if (s->shuffle && s->length) {
        order = reallocarray(NULL, (size_t)s->count, sizeof *order);
        if (!order) return tr__fail(TR_NO_MEMORY, "sampler_indices: no memory for an order of %" PRId64, s->count);
        for (int64_t i = 0; i < s->count; i++) order[i] = i;
        shuffle(order, s->count, tr__mix(s->seed, (uint64_t)epoch));
    }
    for (int64_t i = 0; i < s->length; i++) {
        int64_t place = place_of(s, i);
        out[i] = order ? order[place] : place;
    }
    free(order);
    return TR_OK;
}

tr_status tr_sampler_indices(const tr_sampler *sampler, int64_t *out)
{
    TR__TRY(check("sampler_indices", sampler));
    if (!out) return tr__fail(TR_INVALID, "sampler_indices: out is NULL");
    return tr__sampler_draw(sampler, sampler->epoch, out);
}
