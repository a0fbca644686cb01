/* `trireme train --ranks N`: starts this program N times, with every option spelt out. */
#include "train.h"

#include "relaunch.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An argument list that owns its strings, but for list[0]. */
typedef struct arguments {
    char *list[TR__OPTIONS_MOST + 5];
    int count;
    bool whole;
} arguments;

/* Takes the string. */
static void add_own(arguments *a, char *text)
{
    if (!text || a->count == (int)(sizeof a->list / sizeof *a->list) - 1) a->whole = false;
    if (a->whole)
        a->list[a->count++] = text;
    else
        free(text);
}

/* Every option is spelt out, so that the ranks need not look anything up; numbers out of their range stand for "not given". */
static void fill(arguments *a, const tr__train *t)
{
    *a = (arguments){.count = 1, .whole = true};
    add_own(a, strdup("train"));
    add_own(a, strdup(t->model));
    for (const tr__option *o = t->options; o->name; o++) {
        char value[PATH_MAX], *option;
        bool not_given = (o->type == TR__OPTION_INTEGER && *(int *)o->into < o->least) ||
                         (o->type == TR__OPTION_NUMBER && *(double *)o->into < o->least);
        if (not_given || !tr__train_value(o, value, sizeof value)) continue;
        /* A value may look like an option: in the same argument it cannot be taken for one. */
        bool flag = o->type == TR__OPTION_FLAG;
        add_own(a, asprintf(&option, "--%s%s%s", o->name, flag ? "" : "=", flag ? "" : value) < 0 ? NULL : option);
    }
}

int tr__train_launch(tr__train *t)
{
    arguments a;
    fill(&a, t);
    char started[64], content[160];
    snprintf(started, sizeof started, TR__TRAIN_PARENT "=%" PRId64, t->started_ns);
    snprintf(content, sizeof content, TR__TRAIN_CONTENT "=%s", t->content);
    char flight[PATH_MAX + 64]; /* what the user has set comes first */
    snprintf(flight, sizeof flight, "TRIREME_FLIGHT_DIR=%s/flight", t->out);
    const char *env[] = {started, content, getenv("TRIREME_FLIGHT_DIR") ? NULL : flight, NULL};
    int code = TR__EXIT_FAILED;
    if (a.whole)
        code = tr__relaunch(t->command, (const char **)a.list, t->ranks, t->max_restarts, t->min_ranks, env);
    else
        tr__complain(t->command, "out of memory");
    for (int i = 1; i < a.count; i++) free(a.list[i]);
    return code;
}
