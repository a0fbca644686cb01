#include "parallel/workers.h"

#include "base/thread.h"

#include <stdlib.h>

typedef struct worker {
    struct tr__workers *all;
    int number;
    pthread_t thread;
} worker;

struct tr__workers {
    tr__object object;
    int count;
    worker *threads;    /* workers 1 … count - 1 */
    int started;
    tr__error **errors; /* [count] of this job; NULL: none */
    pthread_mutex_t callers; /* held during a job: callers wait for each other */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake, done;
    bool stopping;
    unsigned job;       /* incremented for each, after what follows was written */
    int used;           /* workers that take part */
    int running;        /* threads among them that have not finished */
    tr__workers_function function;
    void *arg;
    bool grad;
    tr_dtype autocast;
    tr__call_site site;
};

static void run(tr__workers *w, int number)
{
    TR_SCOPE;
    TR__CALLED_AT(w->site.file, w->site.line);
    bool was = tr__grad_mode_set(w->grad);
    tr_dtype autocast = tr__autocast_set(w->autocast);
    w->errors[number] = w->function(w->arg, number) == TR_OK ? NULL : tr__error_take();
    tr__grad_mode_set(was);
    tr__autocast_set(autocast);
}

static void *work(void *arg)
{
    const worker *self = arg;
    tr__workers *w = self->all;
    unsigned seen = 0;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->job == seen && !w->stopping) pthread_cond_wait(&w->wake, &w->lock);
        if (w->stopping) break;
        seen = w->job;
        if (self->number >= w->used) continue;
        pthread_mutex_unlock(&w->lock);
        run(w, self->number);
        pthread_mutex_lock(&w->lock);
        if (--w->running == 0) pthread_cond_signal(&w->done);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void destroy(void *self)
{
    tr__workers *w = self;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->started; i++) pthread_join(w->threads[i].thread, NULL);
    pthread_mutex_destroy(&w->callers);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    pthread_cond_destroy(&w->done);
    free(w->threads);
    free(w->errors);
}

static const tr__type workers_type = {"worker threads", sizeof(tr__workers), destroy};

static tr_status start(tr__workers *w, int count)
{
    w->count = count;
    w->threads = calloc((size_t)count, sizeof(worker));
    w->errors = calloc((size_t)count, sizeof(tr__error *));
    if (!w->threads || !w->errors) return tr__fail(TR_NO_MEMORY, "out of memory for %d threads", count);
    for (int i = 0; i < count - 1; i++) {
        worker *one = &w->threads[i];
        *one = (worker){.all = w, .number = i + 1};
        int error = tr__thread_start(&one->thread, work, one);
        if (error) return tr__fail_errno(TR_NO_MEMORY, error, "cannot start thread %d of %d", i + 1, count);
        w->started++;
    }
    return TR_OK;
}

tr__workers *tr__workers_new(int count)
{
    tr__workers *w = tr__object_new(&workers_type);
    if (w->object.error) return w;
    pthread_mutex_init(&w->callers, NULL);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    pthread_cond_init(&w->done, NULL);
    if (start(w, count) != TR_OK) tr__object_break(w);
    return w;
}

static tr_status first_failure(tr__workers *w, int count)
{
    const tr__error *first = NULL;
    for (int i = 0; i < count; i++) {
        const tr__error *error = w->errors[i];
        if (error && (!first || (first->status == TR_CANCELLED && error->status != TR_CANCELLED))) first = error;
    }
    tr_status status = tr__fail_stored(first);
    for (int i = 0; i < count; i++) tr__error_unref(w->errors[i]);
    return status;
}

tr_status tr__workers_run(tr__workers *w, int count, tr__workers_function function, void *arg)
{
    TR__TRY(tr_status_of(w));
    if (count > w->count) return tr__fail(TR_INTERNAL, "%d workers were asked for, there are %d", count, w->count);
    pthread_mutex_lock(&w->callers);

    pthread_mutex_lock(&w->lock);
    w->used = count;
    w->running = count - 1;
    w->function = function;
    w->arg = arg;
    w->grad = tr__grad_mode();
    w->autocast = tr__autocast();
    w->site = tr__call_site_enter(NULL, 0);
    w->job++;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);

    run(w, 0);
    pthread_mutex_lock(&w->lock);
    while (w->running > 0) pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);

    tr_status status = first_failure(w, count);
    pthread_mutex_unlock(&w->callers);
    return status;
}
