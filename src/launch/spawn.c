#include "launch/spawn.h"

#include "base/object.h"
#include "base/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A launcher in a rank of another one adds its mark to that one's, so that both know what its ranks have left behind. Of many
 * launchers in each other the three outermost and the innermost count: the others end with these. */
static void write_mark(char *text, size_t bytes, const char *mark)
{
    enum { mark_bytes = 64, outer_marks = 3 };
    const char *outer = getenv("TRIREME_LAUNCH");
    if (!outer) outer = "";
    snprintf(text, bytes, "TRIREME_LAUNCH=%.*s%s%s", outer_marks * (mark_bytes + 1) - 1, outer, *outer ? ":" : "", mark);
}

tr_status tr__env_make(tr__env *env, const tr__env_options *o)
{
    enum { contract = sizeof env->text / sizeof *env->text };
    size_t more = 0, bytes = sizeof *env->text;
    while (o->extra && o->extra[more]) more++;
    env->entries = tr__environment_copy(more + contract);
    if (!env->entries) return tr__fail(TR_NO_MEMORY, "launch: no memory for the environment of the ranks");
    env->call = o->call;

    for (size_t i = 0; i < more; i++) tr__environment_set(env->entries, (char *)o->extra[i]);
    env->first_rank = o->first_rank;
    snprintf(env->text[3], bytes, "WORLD_SIZE=%d", o->world);
    snprintf(env->text[4], bytes, "LOCAL_WORLD_SIZE=%d", o->ranks);
    snprintf(env->text[5], bytes, "GROUP_RANK=%d", o->node);
    snprintf(env->text[6], bytes, "MASTER_ADDR=%s", o->host);
    snprintf(env->text[7], bytes, "MASTER_PORT=%d", o->port);
    snprintf(env->text[8], bytes, "TRIREME_TOKEN=%s", o->token);
    write_mark(env->text[9], bytes, o->mark);
    snprintf(env->text[10], bytes, "TRIREME_STORE=1");
    snprintf(env->text[11], bytes, "TRIREME_JOB=%s", o->job);
    snprintf(env->text[12], bytes, "TORCHELASTIC_RESTART_COUNT=%d", o->restarts);
    snprintf(env->text[13], bytes, "TORCHELASTIC_MAX_RESTARTS=%d", o->max_restarts);
    snprintf(env->text[14], bytes, "TRIREME_BEGAN=%" PRId64, o->began_ns);
    tr__env_set_rank(env, 0);
    for (int i = o->call ? 0 : 1; i < contract; i++) tr__environment_set(env->entries, env->text[i]);
    return TR_OK;
}

void tr__env_set_rank(tr__env *env, int local_rank)
{
    if (env->call) tr__call_variable(env->call, local_rank, env->text[0]);
    snprintf(env->text[1], sizeof *env->text, "RANK=%d", env->first_rank + local_rank);
    snprintf(env->text[2], sizeof *env->text, "LOCAL_RANK=%d", local_rank);
}

void tr__env_free(tr__env *env)
{
    free(env->entries);
    env->entries = NULL;
}
