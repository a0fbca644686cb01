#include "cost.h"

#include "common.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WRITES = 64, /* recent steps that a later one may depend on */
    IN = 0,     /* the buffer that is complete from the beginning */
    AHEAD = 64,  /* steps that may be sent before an earlier one has been received: the executor's window */
};

/* When the first and the last byte of something are there. */
typedef struct span {
    double first, last;
} span;

typedef struct written {
    tr_schedule_part part;
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

typedef struct transfer { /* a transfer that has been sent and not been received */
    int from, to, next; /* next: in its bucket, oldest first; -1: none */
    span when;
} transfer;

enum { BUCKETS = 1 << 14 };

typedef struct simulation {
    tr_schedule schedule;
    const tr__network *network;
    double element;
    int64_t steps;
    actor *actors;
    int *ready, ready_count; /* ranks that may go on */
    transfer *transfers;
    int transfer_count, transfer_capacity, free_transfer;
    int buckets[BUCKETS];
} simulation;

/* ---- Transfers on their way -------------------------------------------------------------------------------------- */

static unsigned bucket_of(int from, int to)
{
    return ((unsigned)from * 2654435761u ^ (unsigned)to * 40503u) % BUCKETS;
}

static tr_status put_transfer(simulation *p, int from, int to, span when)
{
    int at = p->free_transfer;
    if (at >= 0) {
        p->free_transfer = p->transfers[at].next;
    } else {
        if (p->transfer_count == p->transfer_capacity) {
            int capacity = p->transfer_capacity * 2 + 256;
            transfer *transfers = realloc(p->transfers, (size_t)capacity * sizeof *transfers);
            if (!transfers) return tr_fail(TR_NO_MEMORY, "no memory for %d transfers", capacity);
            p->transfers = transfers;
            p->transfer_capacity = capacity;
        }
        at = p->transfer_count++;
    }
    p->transfers[at] = (transfer){from, to, -1, when};
    int *link = &p->buckets[bucket_of(from, to)];
    while (*link >= 0) link = &p->transfers[*link].next;
    *link = at;
    return TR_OK;
}

static bool take_transfer(simulation *p, int from, int to, span *when)
{
    for (int *link = &p->buckets[bucket_of(from, to)]; *link >= 0; link = &p->transfers[*link].next) {
        int at = *link;
        if (p->transfers[at].from != from || p->transfers[at].to != to) continue;
        *when = p->transfers[at].when;
        *link = p->transfers[at].next;
        p->transfers[at].next = p->free_transfer;
        p->free_transfer = at;
        return true;
    }
    return false;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static double bytes_of(const simulation *p, tr_schedule_part part)
{
    return (double)(part.end - part.begin) * p->element;
}

/* Seconds at a speed of which 0 means that it takes none. */
static double at_speed(double bytes, double speed)
{
    return speed > 0 ? bytes / speed : 0;
}

static bool overlap(tr_schedule_part a, tr_schedule_part b)
{
    return a.buffer == b.buffer && a.begin < b.end && b.begin < a.end;
}

static bool covers(tr_schedule_part a, tr_schedule_part b)
{
    return a.buffer == b.buffer && a.begin <= b.begin && a.end >= b.end;
}

/* When a part of the rank's memory is there; the input is from the beginning. */
static span ready_at(const actor *a, tr_schedule_part part)
{
    span when = {0, 0};
    int64_t oldest = a->write_count > WRITES ? a->write_count - WRITES : 0;
    for (int64_t i = a->write_count - 1; i >= oldest && part.buffer != IN; i--) {
        const written *w = &a->writes[i % WRITES];
        if (!overlap(w->part, part)) continue;
        when.first = fmax(when.first, w->when.first);
        when.last = fmax(when.last, w->when.last);
        if (covers(w->part, part)) break;
    }
    return when;
}

static void note(actor *a, tr_schedule_part part, span when)
{
    a->writes[a->write_count++ % WRITES] = (written){part, when};
    a->done = fmax(a->done, when.last);
}

static tr_status simulate_send(simulation *p, int rank, const tr_schedule_step *step)
{
    actor *a = &p->actors[rank], *other = &p->actors[step->to];
    const tr__network *n = p->network;
    double bytes = bytes_of(p, step->send), piece = fmin(bytes, n->piece), work = at_speed(bytes, n->copy);
    span data = ready_at(a, step->send);
    bool coming = data.last > data.first; /* it is sent on as it comes in */
    /* The first piece must be there; the last one leaves when it has come, and when all before it have left. */
    double begin = fmax(a->thread, coming ? data.first + piece / n->bandwidth : data.last) + n->overhead;
    a->thread = begin + work;
    double leaves = fmax(begin, a->out_free);
    double end = fmax(leaves + bytes / n->bandwidth, a->thread);
    if (coming) end = fmax(end, data.last + piece / n->bandwidth + at_speed(piece, n->copy));
    a->out_free = end;
    a->done = fmax(a->done, end);
    TRY(put_transfer(p, rank, step->to, (span){leaves + n->latency, end + n->latency}));
    if (other->waits_for == rank) {
        other->waits_for = -1;
        p->ready[p->ready_count++] = step->to;
    }
    return TR_OK;
}

static bool simulate_receive(simulation *p, int rank, const tr_schedule_step *step)
{
    actor *a = &p->actors[rank];
    const tr__network *n = p->network;
    span came;
    if (!take_transfer(p, step->from, rank, &came)) return false;
    double bytes = bytes_of(p, step->receive), piece = fmin(bytes, n->piece);
    double speed = !step->folds ? 0 : n->fold, work = at_speed(bytes, n->copy) + at_speed(bytes, speed);
    double arrives = fmax(came.first, a->in_free);
    a->in_free = fmax(came.last, arrives + bytes / n->bandwidth);
    double begin = fmax(arrives, a->thread) + n->overhead;
    a->thread = begin + work;
    /* The last piece is worked on when it has come. */
    double end = fmax(a->thread, a->in_free + n->overhead + at_speed(piece, n->copy) + at_speed(piece, speed));
    if (step->folds) end = fmax(end, ready_at(a, step->own).last);
    note(a, step->receive, (span){begin, end});
    return true;
}

/* Folds `own` with the other ranks' parts, or copies it. */
static void simulate_local(simulation *p, int rank, const tr_schedule_step *step)
{
    actor *a = &p->actors[rank];
    bool folds = step->action == TR_SCHEDULE_FOLD;
    double bytes = bytes_of(p, step->own) * (folds ? p->schedule.world_size : 1);
    tr_schedule_part others = step->send;
    others.end += folds ? (p->schedule.world_size - 2) * step->stride : 0;
    double begin = fmax(a->thread, ready_at(a, step->own).last);
    if (folds) begin = fmax(begin, ready_at(a, others).last);
    a->thread = begin + at_speed(bytes, p->network->fold);
    note(a, step->receive, (span){a->thread, a->thread});
}

/* Of an average, what is finished is there at once, when all of it has come: nothing of it is sent on before. Other
 * operations do better than is said here. */
static void simulate_finish(actor *a, tr_schedule_part part)
{
    double last = ready_at(a, part).last;
    note(a, part, (span){last, last});
}

/* Would what step `ahead` sends come from a step that is still to be done? */
static bool depends(const tr_schedule *s, const actor *a, tr_schedule_part send)
{
    for (int64_t i = a->next; i < a->ahead && send.buffer != IN; i++)
        if (overlap(tr_schedule_step_at(s, i).receive, send)) return true;
    return false;
}

/* Sends what can be sent before step `next` is done, and that step's part. */
static tr_status send_ahead(simulation *p, const tr_schedule *s, int64_t steps)
{
    actor *a = &p->actors[s->rank];
    int64_t window = s->kind == TR_BARRIER ? 1 : AHEAD; /* no data keeps the rounds of a barrier apart */
    for (; a->ahead < steps && a->ahead < a->next + window; a->ahead++) {
        tr_schedule_step step = tr_schedule_step_at(s, a->ahead);
        if (step.action != TR_SCHEDULE_EXCHANGE || step.to < 0) continue;
        if (depends(s, a, step.send)) break;
        TRY(simulate_send(p, s->rank, &step));
    }
    return TR_OK;
}

/* Goes on with a rank until it must wait for another. */
static tr_status go_on(simulation *p, int rank)
{
    actor *a = &p->actors[rank];
    tr_schedule s = p->schedule;
    s.rank = rank;
    for (int64_t steps = tr_schedule_steps(&s); a->next < steps; a->next++) {
        TRY(send_ahead(p, &s, steps));
        tr_schedule_step step = tr_schedule_step_at(&s, a->next);
        bool local = step.action == TR_SCHEDULE_FOLD || step.action == TR_SCHEDULE_COPY;
        if (local) simulate_local(p, rank, &step);
        if (step.action == TR_SCHEDULE_FINISH) simulate_finish(a, step.receive);
        if (step.action == TR_SCHEDULE_EXCHANGE && step.from >= 0 && !simulate_receive(p, rank, &step)) {
            a->waits_for = step.from;
            return TR_OK;
        }
    }
    return TR_OK;
}

/* ---- All ranks --------------------------------------------------------------------------------------------------- */

static tr_status carry_out(simulation *p, double *seconds)
{
    int world = p->schedule.world_size;
    for (int rank = world - 1; rank >= 0; rank--) {
        p->actors[rank].waits_for = -1;
        p->ready[p->ready_count++] = rank;
    }
    while (p->ready_count > 0) TRY(go_on(p, p->ready[--p->ready_count]));
    *seconds = 0;
    for (int rank = 0; rank < world; rank++) *seconds = fmax(*seconds, p->actors[rank].done);
    return TR_OK;
}

tr_status tr__cost(const tr_schedule *like, int64_t element_bytes, const tr__network *network, double *seconds)
{
    simulation *p = calloc(1, sizeof *p);
    tr_status status = TR_NO_MEMORY;
    if (p) {
        p->schedule = *like;
        p->network = network;
        p->element = (double)element_bytes;
        p->free_transfer = -1;
        for (int i = 0; i < BUCKETS; i++) p->buckets[i] = -1;
        p->actors = calloc((size_t)like->world_size, sizeof *p->actors);
        p->ready = calloc((size_t)like->world_size, sizeof *p->ready);
    }
    if (p && p->actors && p->ready)
        status = carry_out(p, seconds);
    else
        tr_fail(TR_NO_MEMORY, "no memory to simulate %d ranks", like->world_size);
    if (p) {
        free(p->actors);
        free(p->ready);
        free(p->transfers);
    }
    free(p);
    return status;
}

/* ---- For everybody ----------------------------------------------------------------------------------------------- */

/* The network in the table of algorithms, whose text ends with it. */
static tr_status read_network(tr_network *n)
{
    char *text = tr_algorithms(NULL, 0);
    if (!text) return TR_INVALID; /* the message says why */
    int64_t latency, overhead, wire, copy, fold;
    const char *row = strstr(text, "\nnetwork ");
    int found = row ? sscanf(row, "\nnetwork latency_ns %" SCNd64 " overhead_ns %" SCNd64 " mbytes_per_s %" SCNd64
                                  " copy_mbytes_per_s %" SCNd64 " fold_mbytes_per_s %" SCNd64,
                           &latency, &overhead, &wire, &copy, &fold)
                    : 0;
    free(text);
    if (found != 5) return tr_fail(TR_INTERNAL, "tr_predict: the table of algorithms has no network");
    *n = (tr_network){.latency_us = (double)latency * 1e-3, .overhead_us = (double)overhead * 1e-3,
        .gbytes_per_s = (double)wire * 1e-3, .copy_gbytes_per_s = (double)copy * 1e-3,
        .fold_gbytes_per_s = (double)fold * 1e-3};
    return TR_OK;
}

tr_status tr_predict(tr_collective_kind kind, const char *algorithm, int world_size, int64_t bytes,
    const tr_network *network, double *seconds)
{
    enum { PIECE = 64 << 10 }; /* bytes that the TCP transport forwards at once */
    tr_schedule s;
    tr_network n = {0};
    if (!seconds) return tr_fail(TR_INVALID, "tr_predict: seconds is NULL");
    TRY(tr_schedule_find(kind, algorithm, world_size, bytes, &s));
    if (network)
        n = *network;
    else
        TRY(read_network(&n));
    if (!(n.gbytes_per_s > 0) || !(n.latency_us >= 0) || !(n.overhead_us >= 0) || !(n.copy_gbytes_per_s >= 0) ||
        !(n.fold_gbytes_per_s >= 0))
        return tr_fail(TR_INVALID, "tr_predict: a network has a bandwidth above 0, and no negative times or speeds");
    const tr__network model = {.latency = n.latency_us * 1e-6, .overhead = n.overhead_us * 1e-6,
        .bandwidth = n.gbytes_per_s * 1e9, .copy = n.copy_gbytes_per_s * 1e9, .fold = n.fold_gbytes_per_s * 1e9,
        .piece = PIECE};
    return tr__cost(&s, 1, &model, seconds);
}
