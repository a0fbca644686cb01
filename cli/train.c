/* trireme train: which options there are, and what they are when they are not given. */
#include "train.h"

#include "command.h"
#include "options.h"
#include "system.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

void tr__train_settings(tr__train *t, tr__setting settings[TR__SETTINGS])
{
    const tr__setting all[TR__SETTINGS] = {
        {"data", TR__SETTING_TEXT, &t->data, false}, /* it may have moved: its content is compared */
        {"suffixes", TR__SETTING_TEXT, &t->suffixes, true},
        {"preset", TR__SETTING_TEXT, &t->preset, true},
        {"layers", TR__SETTING_INTEGER, &t->layers, true},
        {"heads", TR__SETTING_INTEGER, &t->heads, true},
        {"dim", TR__SETTING_INTEGER, &t->dim, true},
        {"context", TR__SETTING_INTEGER, &t->context, true},
        {"dropout", TR__SETTING_NUMBER, &t->dropout, true},
        {"batch", TR__SETTING_INTEGER, &t->batch, true},
        {"micro-batch", TR__SETTING_INTEGER, &t->micro_batch, false},
        {"steps", TR__SETTING_INTEGER, &t->steps, false},
        {"warmup", TR__SETTING_INTEGER, &t->warmup, true},
        {"lr", TR__SETTING_NUMBER, &t->lr, true},
        {"min-lr", TR__SETTING_NUMBER, &t->min_lr, true},
        {"weight-decay", TR__SETTING_NUMBER, &t->weight_decay, true},
        {"clip", TR__SETTING_NUMBER, &t->clip, true},
        {"seed", TR__SETTING_INTEGER, &t->seed, true},
        {"eval-every", TR__SETTING_INTEGER, &t->eval_every, false},
        {"save-every", TR__SETTING_INTEGER, &t->save_every, false},
    };
    memcpy(settings, all, sizeof all);
}

/* With as few digits as give the same number back. */
static bool put_number(double value, char *text, size_t bytes)
{
    int digits = 6;
    do snprintf(text, bytes, "%.*g", digits, value);
    while (strtod(text, NULL) != value && ++digits <= 17);
    return true;
}

bool tr__setting_text(const tr__setting *s, char *text, size_t bytes)
{
    const char *value = s->type == TR__SETTING_TEXT ? *(const char **)s->value : NULL;
    if (s->type == TR__SETTING_INTEGER) return snprintf(text, bytes, "%d", *(int *)s->value) > 0;
    if (s->type == TR__SETTING_NUMBER) return put_number(*(double *)s->value, text, bytes);
    return value && snprintf(text, bytes, "%s", value) < (int)bytes;
}

bool tr__train_given(const tr__train *t, const char *name)
{
    size_t length = strlen(name);
    for (const char *const *argument = t->given; *argument; argument++)
        if (!strncmp(*argument, "--", 2) && !strncmp(*argument + 2, name, length) &&
            (!(*argument)[2 + length] || (*argument)[2 + length] == '='))
            return true;
    return false;
}

const char *tr__train_own(tr__train *t, char *text)
{
    if (!text || t->n_owned == (int)(sizeof t->owned / sizeof *t->owned)) {
        free(text);
        return NULL;
    }
    return t->owned[t->n_owned++] = text;
}

tr_gpt_options tr__train_model(const tr__train *t)
{
    return (tr_gpt_options){.size = sizeof(tr_gpt_options),
        .vocab = 256, /* bytes */
        .context = t->context,
        .layers = t->layers,
        .heads = t->heads,
        .dim = t->dim,
        .dropout = t->dropout,
        .seed = (uint64_t)t->seed};
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

/* What goes with a preset's size. */
static const struct preset {
    const char *name;
    int batch, steps, warmup, save_every;
    double lr;
} presets[] = {
    {"nano", 12, 2000, 100, 500, 3e-3},
    {"mini", 16, 3000, 100, 200, 1e-3},
    {"gpt2", 32, 10000, 500, 100, 6e-4},
};

static void or_default(int *value, int otherwise)
{
    if (!*value) *value = otherwise;
}

/* What was not given comes from the preset. */
static int fill_in(tr__train *t)
{
    const struct preset *p = presets;
    while (strcmp(p->name, t->preset) != 0) p++;
    tr_gpt_options size = {.size = sizeof size};
    if (tr_gpt_preset(t->preset, &size) != TR_OK) {
        tr__complain(TR__TRAIN, "%s", tr_error_message());
        return TR__EXIT_FAILED;
    }
    or_default(&t->layers, size.layers);
    or_default(&t->heads, size.heads);
    or_default(&t->dim, size.dim);
    or_default(&t->context, size.context);
    or_default(&t->batch, p->batch);
    or_default(&t->steps, p->steps);
    or_default(&t->save_every, p->save_every);
    if (!tr__train_given(t, "lr")) t->lr = p->lr;
    if (!tr__train_given(t, "min-lr")) t->min_lr = t->lr / 10;
    if (!tr__train_given(t, "warmup")) t->warmup = p->warmup < t->steps / 10 ? p->warmup : t->steps / 10;
    return -1;
}

/* Returns -1 to go on, else the exit code. */
static int read_options(tr__train *t, int argc, char **argv)
{
    const double any = 1e9;
    const int many = INT_MAX;
    const tr__option options[] = {
        {"data", 0, "PATH", "the text: a file, or a folder of text files", TR__TEXT(&t->data)},
        {"suffixes", 0, "LIST", "of a folder only files whose names end so: \".c .h\"", TR__TEXT(&t->suffixes)},
        {"preset", 0, "NAME", "the model's size", TR__CHOICE(&t->preset, "nano", "mini", "gpt2")},
        {"layers", 0, "N", "layers instead of the preset's", TR__INTEGER(&t->layers, 1, 1000)},
        {"heads", 0, "N", "attention heads instead of the preset's", TR__INTEGER(&t->heads, 1, 1000)},
        {"dim", 0, "N", "width instead of the preset's", TR__INTEGER(&t->dim, 1, 100000)},
        {"context", 0, "N", "bytes that the model sees at once, instead of the preset's",
            TR__INTEGER(&t->context, 1, 1000000)},
        {"dropout", 0, "P", "share of activations dropped in training", TR__NUMBER(&t->dropout, 0, 0.99)},
        {"steps", 0, "N", "steps of the schedule (nano: 2000)", TR__INTEGER(&t->steps, 1, many)},
        {"batch", 0, "N", "windows in a step, of all ranks together (nano: 12)", TR__INTEGER(&t->batch, 1, 1000000)},
        {"micro-batch", 0, "N", "windows that a rank computes at once (as many as memory allows)",
            TR__INTEGER(&t->micro_batch, 1, 1000000)},
        {"lr", 0, "X", "learning rate after the warm-up (nano: 3e-3)", TR__NUMBER(&t->lr, 1e-12, 1000)},
        {"min-lr", 0, "X", "learning rate at the end of the cosine (a tenth of --lr)", TR__NUMBER(&t->min_lr, 0, 1000)},
        {"warmup", 0, "N", "steps of warm-up (nano: 100)", TR__INTEGER(&t->warmup, 0, many)},
        {"weight-decay", 0, "X", "AdamW's, of matrices", TR__NUMBER(&t->weight_decay, 0, 1000)},
        {"clip", 0, "X", "the most that the gradients' norm may be; 0: any", TR__NUMBER(&t->clip, 0, any)},
        {"seed", 0, "N", "for the weights, batches and dropout", TR__INTEGER(&t->seed, 0, many)},
        {"ranks", 'n', "N", "processes that share the work", TR__INTEGER(&t->ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"threads", 0, "N", "threads of each rank (its share of the cores)", TR__INTEGER(&t->threads, 1, 1024)},
        {"eval-every", 0, "N", "steps between validations", TR__INTEGER(&t->eval_every, 1, many)},
        {"save-every", 0, "N", "steps between checkpoints (nano: 500)", TR__INTEGER(&t->save_every, 1, many)},
        {"stop-at", 0, "N", "stop after this step; go on with --resume", TR__INTEGER(&t->stop_at, 1, many)},
        {"out", 'o', "FOLDER", "where metrics, chart and checkpoints go (a new folder here)", TR__TEXT(&t->out)},
        {"resume", 0, NULL, "go on from the newest checkpoint in --out, with its options", TR__FLAG(&t->resume)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__TEXT(&t->json)},
        {"plain", 0, NULL, "lines instead of a progress bar", TR__FLAG(&t->plain)},
        {0},
    };
    const tr__syntax syntax = {TR__TRAIN, NULL,
        "Trains a GPT on the bytes of a text, on one process or several, and keeps what it learned.\n"
        "Ctrl-C saves and stops. docs/training.md says more.",
        options, .operands = {0, 0}};
    return tr__parse(&syntax, &argc, argv);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* When this process was made, or the `trireme train` that made it. The kernel counts in ticks since boot. */
static int64_t start_of_process(void)
{
    const char *parent = getenv(TR__TRAIN_PARENT);
    if (parent && *parent) return strtoll(parent, NULL, 10);
    char line[1024];
    const char *after = tr__first_line("/proc/self/stat", line, sizeof line) ? strrchr(line, ')') : NULL;
    for (int field = 2; after && field < 22; field++) after = strchr(after + 1, ' ');
    int64_t now = now_ns(CLOCK_MONOTONIC);
    if (!after) return now;
    int64_t age = now_ns(CLOCK_BOOTTIME) - strtoll(after, NULL, 10) * (1000000000 / sysconf(_SC_CLK_TCK));
    return age > 0 ? now - age : now;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int train(tr__train *t)
{
    TR_SCOPE;
    if (t->resume && !t->out) {
        tr__complain(TR__TRAIN, "--resume goes on in the folder of a training: --out FOLDER is missing");
        return TR__EXIT_USAGE;
    }
    int status = t->resume && !t->has_parent ? tr__train_restore(t) : -1;
    if (status < 0 && !t->data) {
        tr__complain(TR__TRAIN, "--data PATH is missing: the text to learn, a file or a folder");
        status = TR__EXIT_USAGE;
    }
    if (status < 0) status = fill_in(t);
    tr_text *text = NULL;
    if (status < 0 && !t->has_parent) status = tr__train_check(t, &text);
    if (status >= 0) return status;
    return t->ranks > 1 && !t->under_launcher ? tr__train_launch(t) : tr__train_rank(t, text);
}

static int train_gpt(int argc, char **argv)
{
    const char **given = calloc((size_t)argc + 1, sizeof *given);
    if (!given) {
        tr__complain(TR__TRAIN, "out of memory");
        return TR__EXIT_FAILED;
    }
    memcpy(given, argv, (size_t)argc * sizeof *given);
    tr__train t = {.preset = "nano", .weight_decay = 0.1, .clip = 1, .seed = 1, .eval_every = 250, .ranks = 1};
    t.given = given;
    t.started_ns = start_of_process();
    t.under_launcher = getenv("RANK") != NULL;
    t.has_parent = t.under_launcher && getenv(TR__TRAIN_PARENT);
    const char *text = t.has_parent ? getenv(TR__TRAIN_TEXT) : NULL;
    if (text) snprintf(t.text_id, sizeof t.text_id, "%s", text);
    int status = read_options(&t, argc, argv);
    if (status < 0) status = train(&t);
    for (int i = 0; i < t.n_owned; i++) free(t.owned[i]);
    free(given);
    return status;
}

int tr__cli_train(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : NULL;
    if (model && !strcmp(model, "gpt")) return train_gpt(argc - 1, argv + 1);
    if (model && (!strcmp(model, "--help") || !strcmp(model, "-h"))) {
        printf("Usage: trireme train MODEL [OPTION…]\n\nTrains a model. `trireme train MODEL --help` lists the "
               "options.\n\n"
               "Models:\n  gpt  a language model, on the bytes of a text\n");
        return TR__EXIT_OK;
    }
    if (!model)
        tr__complain("train", "a model is missing: trireme train gpt");
    else
        tr__complain("train", "no model is named \"%s\": there is gpt", model);
    fprintf(stderr, "Try: trireme train --help\n");
    return TR__EXIT_USAGE;
}
