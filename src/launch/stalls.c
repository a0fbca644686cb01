#include "launch/stalls.h"

#include "base/clock.h"
#include "base/log.h"
#include "comm/group/group.h"
#include "comm/record/record.h"

#include <stdlib.h>
#include <string.h>

static void look(uv_timer_t *timer)
{
    tr__stalls *s = timer->data;
    int64_t after = s->seen_ns, until = tr__now_ns() - (int64_t)TR__GROUP_REPORT_MS * 1000000;
    tr__records records;
    char *text;
    if (tr__records_read(0, &records) != TR_OK) return;
    if (tr__records_stalls(&records, s->job, after, until, &text) == TR_OK) {
        char *rest;
        if (*text) s->seen_ns = until; /* what cannot be seen now, of a rank that is stopped for a moment, is told later */
        for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            tr__log(TR_LOG_WARN, "%s; `trireme why %s` tells of every rank", line, s->job);
        free(text);
    }
    tr__records_free(&records);
}

void tr__stalls_watch(tr__stalls *s, uv_loop_t *loop, const char *job)
{
    enum { LOOK_MS = 2000 }; /* often enough for what has lasted ten seconds */
    *s = (tr__stalls){.job = job};
    uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    if (tr__logs(TR_LOG_WARN)) uv_timer_start(&s->timer, look, LOOK_MS, LOOK_MS);
}
