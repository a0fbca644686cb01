#include "comm/algo/cost.h"

#include "base/object.h"

#include <stdlib.h>

enum {
    WRITES = 64, /* recent steps that a later one may depend on */
    AHEAD = 64,  /* steps that may be sent before an earlier one has been received: the executor's window */
};

/* When the first and the last byte of something are there. */
typedef struct span {
    double first, last;
} span;

typedef struct written {
    tr__part part;
    span when;
} written;

typedef struct actor { /* a rank */
    int64_t next, ahead; /* steps: all before `next` are done, and those before `ahead` are sent */
    int waits_for;
    double out_free, in_free; /* when the ways out and in are, */
    double thread;            /* and the thread, if it has idled only where nothing could be done */
    double done;
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

static double sooner(double a, double b)
{
    return a < b ? a : b;
}

static double bytes_of(const paper *p, tr__part part)
{
    return (double)(part.range.end - part.range.begin) * p->element;
}

/* Seconds at a speed of which 0 means that it takes none. */
static double at_speed(double bytes, double speed)
{
    return speed > 0 ? bytes / speed : 0;
}

static bool meet(tr__part a, tr__part b)
{
    return a.buffer == b.buffer && a.range.begin < b.range.end && b.range.begin < a.range.end;
}

static bool covers(tr__part a, tr__part b)
{
    return a.buffer == b.buffer && a.range.begin <= b.range.begin && a.range.end >= b.range.end;
}

/* When a part of the rank's memory is there; the input is from the beginning. */
static span ready_at(const actor *a, tr__part part)
{
    span when = {0, 0};
    int64_t oldest = a->write_count > WRITES ? a->write_count - WRITES : 0;
    for (int64_t i = a->write_count - 1; i >= oldest && part.buffer != TR__IN; i--) {
        const written *w = &a->writes[i % WRITES];
        if (!meet(w->part, part)) continue;
        when.first = later(when.first, w->when.first);
        when.last = later(when.last, w->when.last);
        if (covers(w->part, part)) break;
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
    actor *a = &p->actors[rank], *other = &p->actors[step->to];
    const tr__network *n = p->network;
    double bytes = bytes_of(p, step->send), piece = sooner(bytes, n->piece), work = at_speed(bytes, n->copy);
    span data = ready_at(a, step->send);
    bool coming = data.last > data.first; /* it is sent on as it comes in */
    /* The first piece must be there; the last one leaves when it has come, and when all before it have left. */
    double begin = later(a->thread, coming ? data.first + piece / n->bandwidth : data.last) + n->overhead;
    a->thread = begin + work;
    double leaves = later(begin, a->out_free);
    double end = later(leaves + bytes / n->bandwidth, a->thread);
    if (coming) end = later(end, data.last + piece / n->bandwidth + at_speed(piece, n->copy));
    a->out_free = end;
    a->done = later(a->done, end);
    TR__TRY(put_letter(p, rank, step->to, (span){leaves + n->latency, end + n->latency}));
    if (other->waits_for == rank) {
        other->waits_for = -1;
        p->ready[p->ready_count++] = step->to;
    }
    return TR_OK;
}

static bool receive_on_paper(paper *p, int rank, const tr__step *step)
{
    actor *a = &p->actors[rank];
    const tr__network *n = p->network;
    span came;
    if (!take_letter(p, step->from, rank, &came)) return false;
    double bytes = bytes_of(p, step->receive), piece = sooner(bytes, n->piece);
    double speed = step->take == TR__TAKE ? 0 : n->fold, work = at_speed(bytes, n->copy) + at_speed(bytes, speed);
    double arrives = later(came.first, a->in_free);
    a->in_free = later(came.last, arrives + bytes / n->bandwidth);
    double begin = later(arrives, a->thread) + n->overhead;
    a->thread = begin + work;
    /* The last piece is worked on when it has come. */
    double end = later(a->thread, a->in_free + n->overhead + at_speed(piece, n->copy) + at_speed(piece, speed));
    if (step->take != TR__TAKE) end = later(end, ready_at(a, step->own).last);
    note(a, step->receive, (span){begin, end});
    return true;
}

/* Folds `own` with the other ranks' parts, or copies it. */
static void act_on_paper(paper *p, int rank, const tr__step *step)
{
    actor *a = &p->actors[rank];
    bool folds = step->action == TR__FOLD_LOCAL;
    double bytes = bytes_of(p, step->own) * (folds ? p->schedule.world_size : 1);
    tr__part others = step->send;
    others.range.end += folds ? (p->schedule.world_size - 2) * step->stride : 0;
    double begin = later(a->thread, ready_at(a, step->own).last);
    if (folds) begin = later(begin, ready_at(a, others).last);
    a->thread = begin + at_speed(bytes, p->network->fold);
    note(a, step->receive, (span){a->thread, a->thread});
}

/* Of an average, what is finished is there at once, when all of it has come: nothing of it is sent on before. Other
 * operations do better than is said here. */
static void finish_on_paper(actor *a, tr__part part)
{
    double last = ready_at(a, part).last;
    note(a, part, (span){last, last});
}

/* Would what step `ahead` sends come from a step that is still to be done? */
static bool depends(const tr__schedule *s, const actor *a, tr__part send)
{
    for (int64_t i = a->next; i < a->ahead && send.buffer != TR__IN; i++)
        if (meet(tr__schedule_step(s, i).receive, send)) return true;
    return false;
}

/* Sends what can be sent before step `next` is done, and that step's part. */
static tr_status send_ahead(paper *p, const tr__schedule *s, int64_t steps)
{
    actor *a = &p->actors[s->rank];
    int64_t window = s->kind == TR_BARRIER ? 1 : AHEAD; /* no data keeps the rounds of a barrier apart */
    for (; a->ahead < steps && a->ahead < a->next + window; a->ahead++) {
        tr__step step = tr__schedule_step(s, a->ahead);
        if (step.action != TR__EXCHANGE || step.to < 0) continue;
        if (depends(s, a, step.send)) break;
        TR__TRY(send_on_paper(p, s->rank, &step));
    }
    return TR_OK;
}

/* Goes on with a rank until it must wait for another. */
static tr_status go_on(paper *p, int rank)
{
    actor *a = &p->actors[rank];
    tr__schedule s = p->schedule;
    s.rank = rank;
    for (int64_t steps = tr__schedule_steps(&s); a->next < steps; a->next++) {
        TR__TRY(send_ahead(p, &s, steps));
        tr__step step = tr__schedule_step(&s, a->next);
        bool local = step.action == TR__FOLD_LOCAL || step.action == TR__COPY_LOCAL;
        if (local) act_on_paper(p, rank, &step);
        if (step.action == TR__FINISH_LOCAL) finish_on_paper(a, step.receive);
        if (step.action == TR__EXCHANGE && step.from >= 0 && !receive_on_paper(p, rank, &step)) {
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
