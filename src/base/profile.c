#include "base/profile.h"

#include "base/clock.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_SPANS = 1 << 19 };

atomic_bool tr__profile_on;

/* Process-wide, as threads of all kinds add to it. */
static struct {
    pthread_mutex_t lock;
    bool taken; /* also while it is paused */
    tr__span *spans;
    size_t count, capacity, lost;
} profile = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Under the lock. */
static void drop(void)
{
    free(profile.spans);
    profile.spans = NULL;
    profile.count = profile.capacity = profile.lost = 0;
}

void tr__profile_drop(void)
{
    pthread_mutex_lock(&profile.lock);
    drop();
    pthread_mutex_unlock(&profile.lock);
}

tr_status tr__profile_start(void)
{
    pthread_mutex_lock(&profile.lock);
    bool starts = !profile.taken;
    if (starts) {
        drop();
        profile.taken = true;
        atomic_store(&tr__profile_on, true);
    }
    pthread_mutex_unlock(&profile.lock);
    return starts ? TR_OK : tr__fail(TR_STATE, "a profile is being taken in this process already");
}

void tr__profile_pause(bool paused)
{
    pthread_mutex_lock(&profile.lock);
    atomic_store(&tr__profile_on, profile.taken && !paused);
    pthread_mutex_unlock(&profile.lock);
}

/* Who adds a span sees it under the lock: after this, the spans stay as they are. */
void tr__profile_stop(void)
{
    pthread_mutex_lock(&profile.lock);
    profile.taken = false;
    atomic_store(&tr__profile_on, false);
    pthread_mutex_unlock(&profile.lock);
}

void tr__profile_add(tr__span span)
{
    span.end = tr__now_ns();
    span.thread = gettid();
    pthread_mutex_lock(&profile.lock);
    bool on = atomic_load(&tr__profile_on);
    bool room = on && profile.count < MOST_SPANS && tr__grow(&profile.spans, profile.count, &profile.capacity, sizeof span);
    if (room) profile.spans[profile.count++] = span;
    profile.lost += on && !room;
    pthread_mutex_unlock(&profile.lock);
}

const tr__span *tr__profile_spans(size_t *count, size_t *lost)
{
    pthread_mutex_lock(&profile.lock);
    *count = profile.count;
    *lost = profile.lost;
    const tr__span *spans = profile.spans;
    pthread_mutex_unlock(&profile.lock);
    return spans;
}
