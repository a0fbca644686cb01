/* What can be known to go wrong is said once, before anything is started. */
#include "train.h"

#include "options.h"
#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int failed(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tr__complain(TR__TRAIN, "%s", text);
    return TR__EXIT_FAILED;
}

static int64_t number_of_environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    int64_t number = text ? strtoll(text, NULL, 10) : 0;
    return number > 0 ? number : otherwise;
}

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

static int restore_setting(tr__train *t, const tr__setting *s, const tr_tensor_list *model)
{
    char key[64], now[PATH_MAX];
    snprintf(key, sizeof key, "trireme.%s", s->name);
    const char *then = tr_list_metadata(model, key);
    if (tr__train_given(t, s->name)) {
        bool same = then && tr__setting_text(s, now, sizeof now) && !strcmp(now, then);
        if (!s->fixed || same) return -1;
        return failed("--resume: the training in %s was started with%s --%s%s%s: leave --%s out", t->out,
            then ? "" : "out", s->name, then ? " " : "", then ? then : "", s->name);
    }
    if (!then) return -1;
    switch (s->type) {
    case TR__SETTING_INTEGER:
        *(int *)s->value = (int)strtol(then, NULL, 10);
        break;
    case TR__SETTING_NUMBER:
        *(double *)s->value = strtod(then, NULL);
        break;
    case TR__SETTING_TEXT:
        *(const char **)s->value = tr__train_own(t, strdup(then));
        if (!*(const char **)s->value) return failed("out of memory");
        break;
    }
    return -1;
}

int tr__train_restore(tr__train *t)
{
    TR_SCOPE;
    char path[PATH_MAX];
    int64_t step;
    tr_tensor_list *model;
    tr_status status = tr_checkpoint_find(t->out, path, &step);
    if (status != TR_OK) return failed("nothing to resume: %s", tr_error_message());
    if (!strcmp(path, t->out)) return failed("--out %s is a checkpoint: give the folder that it is in", t->out);
    if (tr_checkpoint_load(path, &model, NULL) != TR_OK) return failed("%s", tr_error_message());
    const char *kind = tr_list_metadata(model, "trireme.model"), *text = tr_list_metadata(model, "trireme.text");
    if (!kind || strcmp(kind, "gpt") != 0 || !text)
        return failed("%s was not written by `trireme train gpt`, which alone can go on with it", path);
    snprintf(t->text_id, sizeof t->text_id, "%s", text);
    tr__setting settings[TR__SETTINGS];
    tr__train_settings(t, settings);
    for (int i = 0; i < TR__SETTINGS; i++) {
        int code = restore_setting(t, &settings[i], model);
        if (code >= 0) return code;
    }
    return -1;
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

tr_text *tr__train_text(const tr__train *t)
{
    return tr_text(t->data, .suffixes = t->suffixes);
}

static int check_text(tr__train *t, tr_text **text)
{
    struct stat s;
    if (t->ranks > 1 && stat(t->data, &s) == 0 && S_ISFIFO(s.st_mode))
        return failed("%s is a pipe, which only one rank can read: give a file", t->data);
    *text = tr__train_text(t);
    if (tr_status_of(*text) != TR_OK) return failed("%s", tr_error_message());
    int64_t training = tr_text_bytes(*text, false), validation = tr_text_bytes(*text, true);
    if (training <= t->context)
        return failed("%s is too short: its %" PRId64 " bytes leave %" PRId64
                      " for training, and a context of %d takes at "
                      "least %d: give a longer text or a smaller --context",
            t->data, training + validation, training, t->context, t->context + 1);

    char id[sizeof t->text_id];
    snprintf(id, sizeof id, "%" PRId64 " bytes, %016" PRIx64, training + validation, tr_text_hash(*text));
    if (t->resume && strcmp(id, t->text_id) != 0)
        return failed("--resume: %s is not the text that the training in %s was started with (%s then, %s now)",
            t->data, t->out, t->text_id, id);
    snprintf(t->text_id, sizeof t->text_id, "%s", id);
    return -1;
}

/* ---- Sizes and memory -------------------------------------------------------------------------------------------- */

int64_t tr__gpt_parameters(const tr_gpt_options *o)
{
    int64_t dim = o->dim;
    return (o->vocab + o->context) * dim + o->layers * (12 * dim * dim + 13 * dim) + 2 * dim;
}

/* What forward keeps for backward, for one window: per token and layer the packed projection (3), attention's output, the
 * MLP's inside before GELU (4) and the residual stream (2), each of dim floats; and the logits with their gradient. */
static double window_bytes(const tr_gpt_options *o)
{
    return 4.0 * o->context * ((10.0 * o->layers + 6.0) * o->dim + 2.0 * o->vocab);
}

/* A rank besides: the program, its libraries, the matrix engine's kernels and buffers. */
static const double rank_bytes = 40e6;

/* Chooses --micro-batch when it was not given, and refuses what cannot fit. */
static int check_memory(tr__train *t, int64_t world, int64_t text_bytes)
{
    const double gib = 1 << 30;
    tr_gpt_options o = tr__train_model(t);
    int64_t local = t->under_launcher ? number_of_environment("LOCAL_WORLD_SIZE", 1) : t->ranks;
    int64_t share = (t->batch + world - 1) / world, windows = t->micro_batch ? t->micro_batch : share;
    if (windows > share) windows = share;
    /* Weights, gradients and two moments, of f32. */
    double fixed = 16.0 * (double)tr__gpt_parameters(&o) + rank_bytes + (double)text_bytes;
    double left = tr__memory_left_gib() * gib, most = 0.95 * left / (double)local - fixed;
    while (!t->micro_batch && windows > 1 && (double)windows * window_bytes(&o) > most) windows = (windows + 1) / 2;
    double each = fixed + (double)windows * window_bytes(&o);
    if (left > 0 && each * (double)local > 0.95 * left)
        return failed("too little memory: %" PRId64 " rank%s of %.2f GiB (%.2fM parameters with gradients and moments, "
                      "activations of %" PRId64 " window%s) take%s %.1f GiB, and %.1f GiB are left: %s a smaller model",
            local, local > 1 ? "s" : "", each / gib, (double)tr__gpt_parameters(&o) / 1e6, windows,
            windows > 1 ? "s" : "", local > 1 ? "" : "s", each * (double)local / gib, left / gib,
            local > 1     ? "take fewer ranks or"
            : windows > 1 ? "take a smaller --micro-batch or"
                          : "take");
    if (windows < share) t->micro_batch = (int)windows;
    return -1;
}

static int check_sizes(tr__train *t, int64_t world)
{
    if (t->dim % t->heads) return failed("--dim must be a multiple of --heads: %d is not one of %d", t->dim, t->heads);
    if (t->batch < world)
        return failed("a batch of %d windows cannot be shared out over %" PRId64
                      " ranks: give a larger --batch or fewer "
                      "--ranks",
            t->batch, world);
    if (t->under_launcher && tr__train_given(t, "ranks") && t->ranks != world)
        return failed("--ranks %d, but the launcher has started %" PRId64 ": leave --ranks out", t->ranks, world);
    return -1;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int make_folders(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof part) return failed("the name of the folder --out is too long");
    for (size_t i = 1; i <= length; i++) {
        if (path[i] && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) < 0 && errno != EEXIST)
            return failed("cannot make the folder %s: %s", part, strerror(errno));
    }
    return -1;
}

/* A folder of this run's own: gpt-nano, gpt-nano-2, … */
static int make_own_folder(tr__train *t)
{
    for (int n = 1; n < 10000; n++) {
        char *name = NULL;
        char number[16] = "";
        if (n > 1) snprintf(number, sizeof number, "-%d", n);
        if (asprintf(&name, "gpt-%s%s", t->preset, number) < 0) name = NULL;
        if (name && mkdir(name, 0777) == 0) {
            t->out = tr__train_own(t, name);
            return t->out ? -1 : failed("out of memory");
        }
        int error = errno;
        free(name);
        if (error != EEXIST)
            return failed("cannot make a folder for the results here: %s; name another with --out", strerror(error));
    }
    return failed("name a folder for the results with --out");
}

static int check_folder(tr__train *t)
{
    if (!t->out) return make_own_folder(t);
    char path[PATH_MAX];
    int64_t step;
    if (!t->resume && tr_checkpoint_find(t->out, path, &step) == TR_OK)
        return failed(
            "%s holds a training at step %" PRId64 ": go on with --resume, or name another folder", t->out, step);
    int code = make_folders(t->out);
    if (code >= 0) return code;
    struct stat s;
    if (stat(t->out, &s) == 0 && !S_ISDIR(s.st_mode)) return failed("--out %s is no folder", t->out);
    if (access(t->out, W_OK | X_OK) < 0) return failed("cannot write into %s: %s", t->out, strerror(errno));
    return -1;
}

/* Hours later would be late to learn that the results cannot be written. */
static int check_json(const tr__train *t)
{
    int fd = t->json ? open(t->json, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666) : -1;
    if (t->json && fd < 0) return failed("cannot write %s: %s", t->json, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

int tr__train_check(tr__train *t, tr_text **text)
{
    int64_t world = t->under_launcher ? number_of_environment("WORLD_SIZE", 1) : t->ranks;
    int code = check_sizes(t, world);
    if (code < 0) code = check_text(t, text);
    if (code < 0) code = check_memory(t, world, tr_text_bytes(*text, false) + tr_text_bytes(*text, true));
    bool writes = !t->under_launcher || number_of_environment("RANK", 0) == 0;
    if (code < 0 && writes) code = check_json(t);
    if (code < 0 && writes) code = check_folder(t);
    return code;
}
