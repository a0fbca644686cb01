#include "parallel/crew.h"

#include "base/thread.h"

#include <stdlib.h>

typedef struct mate {
    struct tr__crew *crew;
    int member;
    pthread_t thread;
} mate;

struct tr__crew {
    tr__object object;
    int members;
    mate *mates;        /* of members 1 … members - 1 */
    int started;
    tr__error **errors; /* [members] of this job, NULL: none */
    pthread_mutex_t turn; /* of a job: callers take turns */

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake, done;
    bool stopping;
    unsigned job;       /* raised for each, after what follows was written */
    int asked;          /* members that take part */
    int running;        /* of the threads that do, those that are not done */
    tr__crew_body body;
    void *arg;
    bool grad;
    tr_dtype autocast;
};

static void do_part(tr__crew *crew, int member)
{
    TR_SCOPE;
    bool was = tr__grad_mode_set(crew->grad);
    tr_dtype autocast = tr__autocast_set(crew->autocast);
    crew->errors[member] = crew->body(crew->arg, member) == TR_OK ? NULL : tr__error_take();
    tr__grad_mode_set(was);
    tr__autocast_set(autocast);
}

static void *work(void *arg)
{
    const mate *self = arg;
    tr__crew *crew = self->crew;
    unsigned seen = 0;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (crew->job == seen && !crew->stopping) pthread_cond_wait(&crew->wake, &crew->lock);
        if (crew->stopping) break;
        seen = crew->job;
        if (self->member >= crew->asked) continue;
        pthread_mutex_unlock(&crew->lock);
        do_part(crew, self->member);
        pthread_mutex_lock(&crew->lock);
        if (--crew->running == 0) pthread_cond_signal(&crew->done);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

static void destroy(void *self)
{
    tr__crew *crew = self;
    pthread_mutex_lock(&crew->lock);
    crew->stopping = true;
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    for (int i = 0; i < crew->started; i++) pthread_join(crew->mates[i].thread, NULL);
    pthread_mutex_destroy(&crew->turn);
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->wake);
    pthread_cond_destroy(&crew->done);
    free(crew->mates);
    free(crew->errors);
}

static const tr__type crew_type = {"crew", sizeof(tr__crew), destroy};

static tr_status start(tr__crew *crew, int members)
{
    crew->members = members;
    crew->mates = calloc((size_t)members, sizeof(mate));
    crew->errors = calloc((size_t)members, sizeof(tr__error *));
    if (!crew->mates || !crew->errors) return tr__fail(TR_NO_MEMORY, "out of memory for %d threads", members);
    for (int i = 0; i < members - 1; i++) {
        mate *m = &crew->mates[i];
        *m = (mate){.crew = crew, .member = i + 1};
        int error = tr__thread_start(&m->thread, work, m);
        if (error) return tr__fail_errno(TR_NO_MEMORY, error, "cannot start thread %d of %d", i + 1, members);
        crew->started++;
    }
    return TR_OK;
}

tr__crew *tr__crew_new(int members)
{
    tr__crew *crew = tr__object_new(&crew_type);
    if (crew->object.error) return crew;
    pthread_mutex_init(&crew->turn, NULL);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->wake, NULL);
    pthread_cond_init(&crew->done, NULL);
    if (start(crew, members) != TR_OK) tr__object_break(crew);
    return crew;
}

static void post(tr__crew *crew, int members, tr__crew_body body, void *arg)
{
    pthread_mutex_lock(&crew->lock);
    crew->asked = members;
    crew->running = members - 1;
    crew->body = body;
    crew->arg = arg;
    crew->grad = tr__grad_mode();
    crew->autocast = tr__autocast();
    crew->job++;
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
}

static void wait_for_all(tr__crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    while (crew->running > 0) pthread_cond_wait(&crew->done, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

static tr_status first_failure(tr__crew *crew, int members)
{
    const tr__error *first = NULL;
    for (int i = 0; i < members; i++) {
        const tr__error *error = crew->errors[i];
        if (error && (!first || (first->status == TR_CANCELLED && error->status != TR_CANCELLED))) first = error;
    }
    tr_status status = tr__fail_stored(first);
    for (int i = 0; i < members; i++) tr__error_unref(crew->errors[i]);
    return status;
}

tr_status tr__crew_run(tr__crew *crew, int members, tr__crew_body body, void *arg)
{
    TR__TRY(tr_status_of(crew));
    if (members > crew->members) return tr__fail(TR_INTERNAL, "a crew of %d has no %d members", crew->members, members);
    pthread_mutex_lock(&crew->turn);
    post(crew, members, body, arg);
    do_part(crew, 0);
    wait_for_all(crew);
    tr_status status = first_failure(crew, members);
    pthread_mutex_unlock(&crew->turn);
    return status;
}
