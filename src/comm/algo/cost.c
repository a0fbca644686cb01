#include "comm/algo/cost.h"

#include "base/object.h"

#include <stdlib.h>

enum { WRITES = 32 }; /* recent steps that a later one may depend on */

/* When the first and the last byte of something are there. */
typedef struct span {
    double first, last;
} span;

typedef struct written {
    tr__part part;
    span when;
} written;

typedef struct actor { /* a rank */
    int64_t next; /* step */
    bool sent;    /* its transfer has gone out */
    int waits_for;
    double out_free, in_free, done;
    written writes[WRITES];
    int64_t write_count;
} actor;

typedef struct letter { /* a transfer that has been sent and not been received */
    int from, to, next; /* next: in its bucket, oldest first; -1: none */
    span when;
} letter;

enum { BUCKETS = 1 << 14 };

typedef struct paper {
    tr__schedule schedule;
    const tr__network *network;
    double element;
    int64_t steps;
    actor *actors;
    int *ready, ready_count; /* ranks that may go on */
    letter *letters;
    int letter_count, letter_capacity, free_letter;
    int buckets[BUCKETS];
} paper;

/* ---- Transfers on their way -------------------------------------------------------------------------------------- */

static unsigned bucket_of(int from, int to)
{
    return ((unsigned)from * 2654435761u ^ (unsigned)to * 40503u) % BUCKETS;
}

static tr_status put_letter(paper *p, int from, int to, span when)
{
    int at = p->free_letter;
    if (at >= 0) {
        p->free_letter = p->letters[at].next;
    } else {
        if (p->letter_count == p->letter_capacity) {
            int capacity = p->letter_capacity * 2 + 256;
            letter *letters = realloc(p->letters, (size_t)capacity * sizeof *letters);
            if (!letters) return tr__fail(TR_NO_MEMORY, "no memory for %d transfers", capacity);
            p->letters = letters;
            p->letter_capacity = capacity;
        }
        at = p->letter_count++;
    }
    p->letters[at] = (letter){from, to, -1, when};
    int *link = &p->buckets[bucket_of(from, to)];
    while (*link >= 0) link = &p->letters[*link].next;
    *link = at;
    return TR_OK;
}

static bool take_letter(paper *p, int from, int to, span *when)
{
    for (int *link = &p->buckets[bucket_of(from, to)]; *link >= 0; link = &p->letters[*link].next) {
        int at = *link;
        if (p->letters[at].from != from || p->letters[at].to != to) continue;
        *when = p->letters[at].when;
        *link = p->letters[at].next;
        p->letters[at].next = p->free_letter;
        p->free_letter = at;
        return true;
    }
    return false;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double bytes_of(const paper *p, tr__part part)
{
    return (double)(part.range.end - part.range.begin) * p->element;
}

/* When a part of the rank's memory is there; the input is from the beginning. */
static span ready_at(const actor *a, tr__part part)
{
    span when = {0, 0};
    int64_t oldest = a->write_count > WRITES ? a->write_count - WRITES : 0;
    for (int64_t i = oldest; i < a->write_count && part.buffer != TR__IN; i++) {
        const written *w = &a->writes[i % WRITES];
        bool meets = w->part.buffer == part.buffer && w->part.range.begin < part.range.end &&
                     part.range.begin < w->part.range.end;
        if (!meets) continue;
        when.first = later(when.first, w->when.first);
        when.last = later(when.last, w->when.last);
    }
    return when;
}

static void note(actor *a, tr__part part, span when)
{
    a->writes[a->write_count++ % WRITES] = (written){part, when};
    a->done = later(a->done, when.last);
}

static tr_status send_on_paper(paper *p, int rank, const tr__step *step)
{
    actor *a = &p->actors[rank];
    const tr__network *n = p->network;
    double time = bytes_of(p, step->send) / n->bandwidth;
    double piece = (bytes_of(p, step->send) < n->piece ? bytes_of(p, step->send) : n->piece) / n->bandwidth;
    span data = ready_at(a, step->send);
    if (p->schedule.kind == TR_BARRIER) data = (span){a->in_free, a->in_free}; /* no data, but one round after another */
    /* The first piece must be there; the last one leaves when it has come, and when all before it have left. */
    double begin = later(a->out_free, data.last > data.first ? data.first + piece : data.last) + n->overhead;
    double end = later(begin + time, data.last > data.first ? data.last + piece : data.last);
    a->out_free = end;
    a->done = later(a->done, end);
    actor *other = &p->actors[step->to];
    TR__TRY(put_letter(p, rank, step->to, (span){begin + n->latency, end + n->latency}));
    if (other->waits_for == rank) {
        other->waits_for = -1;
        p->ready[p->ready_count++] = step->to;
    }
    return TR_OK;
}

static bool receive_on_paper(paper *p, int rank, const tr__step *step)
{
    actor *a = &p->actors[rank];
    span came;
    if (!take_letter(p, step->from, rank, &came)) return false;
    double time = bytes_of(p, step->receive) / p->network->bandwidth;
    double begin = later(came.first, a->in_free) + p->network->overhead;
    double end = later(came.last + p->network->overhead, begin + time);
    if (step->take != TR__TAKE) end = later(end, ready_at(a, step->own).last);
    a->in_free = end;
    note(a, step->receive, (span){begin, end});
    return true;
}

/* Goes on with a rank until it must wait for another. */
static tr_status go_on(paper *p, int rank)
{
    actor *a = &p->actors[rank];
    tr__schedule s = p->schedule;
    s.rank = rank;
    int64_t steps = tr__schedule_steps(&s);
    for (; a->next < steps; a->next++, a->sent = false) {
        tr__step step = tr__schedule_step(&s, a->next);
        if (step.action == TR__FOLD_LOCAL) note(a, step.receive, (span){a->in_free, a->in_free});
        if (step.action == TR__COPY_LOCAL) note(a, step.receive, ready_at(a, step.own));
        if (step.action != TR__EXCHANGE) continue;
        if (step.to >= 0 && !a->sent) TR__TRY(send_on_paper(p, rank, &step));
        a->sent = true;
        if (step.from >= 0 && !receive_on_paper(p, rank, &step)) {
            a->waits_for = step.from;
            return TR_OK;
        }
    }
    return TR_OK;
}

/* ---- All ranks --------------------------------------------------------------------------------------------------- */

static tr_status carry_out(paper *p, double *seconds)
{
    int world = p->schedule.world_size;
    for (int rank = world - 1; rank >= 0; rank--) {
        p->actors[rank].waits_for = -1;
        p->ready[p->ready_count++] = rank;
    }
    while (p->ready_count > 0) TR__TRY(go_on(p, p->ready[--p->ready_count]));
    *seconds = 0;
    for (int rank = 0; rank < world; rank++) *seconds = later(*seconds, p->actors[rank].done);
    return TR_OK;
}

tr_status tr__cost(const tr__schedule *like, int64_t element_bytes, const tr__network *network, double *seconds)
{
    paper *p = calloc(1, sizeof *p);
    tr_status status = TR_NO_MEMORY;
    if (p) {
        p->schedule = *like;
        p->network = network;
        p->element = (double)element_bytes;
        p->free_letter = -1;
        for (int i = 0; i < BUCKETS; i++) p->buckets[i] = -1;
        p->actors = calloc((size_t)like->world_size, sizeof *p->actors);
        p->ready = calloc((size_t)like->world_size, sizeof *p->ready);
    }
    if (p && p->actors && p->ready)
        status = carry_out(p, seconds);
    else
        tr__fail(TR_NO_MEMORY, "no memory to simulate %d ranks", like->world_size);
    if (p) {
        free(p->actors);
        free(p->ready);
        free(p->letters);
    }
    free(p);
    return status;
}
