/* The root of a backward over several workers: where it begins, and where all is known to be done. */
#include "parallel/dist/part.h"

#include "base/clock.h"
#include "base/thread.h"

#include <stdlib.h>

static tr_status take_roots(tr__dist_part *p, tr_tensor *const *roots, tr_tensor *const *gradients, int n)
{
    p->roots = calloc((size_t)n, sizeof(tr_tensor *));
    p->root_gradients = calloc((size_t)n, sizeof(tr_tensor *));
    if (!p->roots || !p->root_gradients) return tr__part_no_memory();
    for (int i = 0; i < n; i++) {
        p->roots[i] = tr_keep(roots[i]);
        p->root_gradients[i] = tr_keep(gradients[i]);
    }
    p->n_roots = n;
    return TR_OK;
}

/* What the root's inbox begins with. */
static tr_status fill_inbox(tr__dist_part *p)
{
    tr__item *begin = tr__part_item(p->smart ? TR__DIST_MARK : TR__DIST_ENGAGE, NULL, 0);
    tr__item *roots = tr__part_item(TR__DIST_ROOTS, NULL, 0);
    tr__marking *m = p->smart ? calloc(1, sizeof *m) : NULL;
    if (!begin || !roots || (p->smart && !m)) {
        free(begin);
        free(roots);
        free(m);
        return tr__part_no_memory();
    }
    tr__part_push(p, begin);
    p->engaged = !p->smart;
    if (m) {
        *m = (tr__marking){.roots = roots, .waiting = 1};
        begin->marking = m;
    } else {
        tr__part_push(p, roots);
    }
    return TR_OK;
}

tr_status tr__dist_begin(tr_dist_context *c, tr_tensor *const *roots, tr_tensor *const *gradients, int n, bool smart,
    bool retain, int64_t deadline_ns)
{
    pthread_mutex_lock(&c->lock);
    tr__dist_part *old = c->part, *p = NULL;
    tr_status status = TR_OK;
    if (old && !old->over) status = tr__fail(TR_STATE, "backward: one is under way in this context");
    if (status == TR_OK) p = tr__part_new(c, c->passes + 1, smart, retain);
    if (p) p->sink.deadline_ns = deadline_ns;
    if (p) p->site = tr__call_site_enter(NULL, 0);
    if (status == TR_OK) status = p ? take_roots(p, roots, gradients, n) : TR_NO_MEMORY;
    if (status == TR_OK) status = fill_inbox(p);
    if (status == TR_OK) {
        c->passes++;
        c->part = p;
        tr__part_ref(p);
    }
    pthread_mutex_unlock(&c->lock);
    if (status == TR_OK) {
        tr__dist_part_unref(old);
        tr__part_drain(p);
    }
    tr__dist_part_unref(p);
    return status;
}

/* Under the lock: how many gradients of what went out have not come; *first: the worker of the first of them, else -1. */
static int count_missing(const tr__dist_part *p, int *first)
{
    const tr_dist_context *c = p->context;
    int missing = 0;
    *first = -1;
    for (int64_t i = 0; i < c->n_sent; i++) {
        if (c->sent[i]->pass != p->pass || c->sent[i]->arrived) continue;
        if (missing++ == 0) *first = c->sent[i]->to;
    }
    return missing;
}

int tr__dist_awaited(tr_dist_context *c)
{
    int first;
    TR__LOCKED(&c->lock);
    count_missing(c->part, &first);
    return first;
}

/* Why it takes so long. */
static tr_status fail_late(tr__dist_part *p, int timeout_ms)
{
    tr_dist_context *c = p->context;
    int at;
    pthread_mutex_lock(&c->lock);
    int missing = count_missing(p, &at), answers = p->outstanding;
    pthread_mutex_unlock(&c->lock);
    if (missing)
        return tr__fail(TR_TIMEOUT, "backward: not done after %d ms: %d gradients of what went out from here have not "
            "come, the first from worker %d", timeout_ms, missing, at);
    return tr__fail(TR_TIMEOUT, "backward: not done after %d ms: %d workers that it goes on at have not answered",
        timeout_ms, answers);
}

/* Under the lock: the root's gradients are to go out. */
static bool is_marked(const tr__dist_part *p)
{
    return !p->over && !p->running && p->first;
}

bool tr__dist_over(tr_dist_context *c)
{
    TR__LOCKED(&c->lock);
    return c->part->over;
}

bool tr__dist_marked(tr_dist_context *c)
{
    TR__LOCKED(&c->lock);
    return is_marked(c->part);
}

void tr__dist_continue(tr_dist_context *c)
{
    tr__dist_part *p = tr__part_of(c);
    tr__part_drain(p);
    tr__dist_part_unref(p);
}

/* Waits until the part is over; false at the deadline. */
static bool wait_over(tr__dist_part *p, int64_t deadline_ns)
{
    pthread_mutex_t *lock = &p->context->lock;
    bool in_time = true;
    pthread_mutex_lock(lock);
    while (!p->over && in_time) {
        if (is_marked(p)) {
            pthread_mutex_unlock(lock);
            tr__part_drain(p);
            pthread_mutex_lock(lock);
        } else {
            in_time = tr__condition_wait(&p->ended, lock, deadline_ns);
        }
    }
    bool over = p->over;
    pthread_mutex_unlock(lock);
    return over;
}

tr_status tr__dist_await(tr_dist_context *c, int timeout_ms)
{
    tr__dist_part *p = tr__part_of(c);
    int64_t deadline_ns = p->sink.deadline_ns ? p->sink.deadline_ns : tr__now_ns() + (int64_t)timeout_ms * 1000000;
    if (!wait_over(p, deadline_ns)) tr__part_fail(p, fail_late(p, timeout_ms));
    if (p->error) { /* the others end their parts, too */
        const tr__dist_port *port = &c->dist->port;
        tr__dist_message message = {.kind = TR__DIST_ABORT, .context = c->id, .pass = p->pass, .status = p->error->status,
            .text = p->error->message};
        for (int to = 0; to < port->workers; to++)
            if (to != port->self) port->send(port->user, to, &message, NULL);
    }
    /* A failed part's thread may be at the program's hooks yet, which go with the caller. */
    pthread_mutex_lock(&c->lock);
    while (p->engine) pthread_cond_wait(&p->ended, &c->lock);
    pthread_mutex_unlock(&c->lock);
    tr_status status = tr__fail_stored(p->error);
    tr__dist_part_unref(p);
    return status;
}
