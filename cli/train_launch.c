/* `trireme train --ranks N`: starts this program N times, with every option spelt out. */
#include "train.h"

#include "relaunch.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An argument list that owns its strings. */
typedef struct arguments {
    char *list[TR__SETTINGS_MOST + 32];
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

static void add(arguments *a, const char *text)
{
    add_own(a, strdup(text));
}

/* A value may look like an option: in the same argument it cannot be taken for one. */
static void add_option(arguments *a, const char *name, const char *value)
{
    char *option;
    int length = value ? asprintf(&option, "--%s=%s", name, value) : asprintf(&option, "--%s", name);
    add_own(a, length < 0 ? NULL : option);
}

static void add_number(arguments *a, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    if (value) add_option(a, name, text);
}

/* Every setting is spelt out, so that the ranks need not look anything up. */
static void fill(arguments *a, tr__train *t)
{
    a->whole = true;
    add(a, "train");
    add(a, t->model);
    tr__setting settings[TR__SETTINGS_MOST];
    int count = tr__train_settings(t, settings);
    for (int i = 0; i < count; i++) {
        char value[PATH_MAX];
        bool none = settings[i].value == &t->micro_batch && !t->micro_batch;
        if (!none && tr__setting_text(&settings[i], value, sizeof value))
            add_option(a, settings[i].name, settings[i].type == TR__SETTING_FLAG ? NULL : value);
    }
    add_number(a, "ranks", t->ranks);
    add_number(a, "threads", t->threads);
    add_number(a, "timeout", t->timeout);
    add_number(a, "stop-at", t->stop_at);
    add_number(a, "profile", t->profile);
    add_option(a, "device", t->device);
    add_option(a, "backend", t->backend);
    add_option(a, "out", t->out);
    if (t->json) add_option(a, "json", t->json);
    if (t->allow_different) add_option(a, "allow-different", t->allow_different);
    if (t->resume) add_option(a, "resume", NULL);
    if (t->plain) add_option(a, "plain", NULL);
    if (t->recompute) add_option(a, "recompute", NULL);
    char check[16];
    snprintf(check, sizeof check, "%d", t->check_replicas);
    add_option(a, "check-replicas", check);
    if (t->stop_on_spike) add_option(a, "stop-on-spike", NULL);
    if (t->roll_back) add_option(a, "roll-back", NULL);
}

int tr__train_launch(tr__train *t)
{
    arguments a = {0};
    fill(&a, t);
    char started[64], content[160];
    snprintf(started, sizeof started, TR__TRAIN_PARENT "=%" PRId64, t->started_ns);
    snprintf(content, sizeof content, TR__TRAIN_CONTENT "=%s", t->content);
    char flight[PATH_MAX + 64]; /* what the user has set comes first */
    snprintf(flight, sizeof flight, "TRIREME_FLIGHT_DIR=%s/flight", t->out);
    const char *env[] = {started, content, getenv("TRIREME_FLIGHT_DIR") ? NULL : flight, NULL};
    int code = TR__EXIT_FAILED;
    if (a.whole)
        code = tr__relaunch(t->command, (const char *const *)a.list, t->ranks, env);
    else
        tr__complain(t->command, "out of memory");
    for (int i = 0; i < a.count; i++) free(a.list[i]);
    return code;
}
