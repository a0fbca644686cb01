/* What can be known to go wrong is said once, before anything is started. */
#include "train.h"

#include "bench_result.h"
#include "relaunch.h"
#include "terminal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

/* Two values, or two names of one file: what checkpoints say of some files is their full path. */
static bool is_same(const char *now, const char *then)
{
    struct stat a, b;
    return !strcmp(now, then) || (stat(now, &a) == 0 && stat(then, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

/* What a checkpoint says is checked as what a user says is. */
static int restore_setting(tr__train *t, const tr__setting *s, const char *path, const tr_tensor_list *model)
{
    char key[64], now[PATH_MAX];
    const tr__option *o = tr__option_named(t->options, s->name);
    snprintf(key, sizeof key, "trireme.%s", s->name);
    const char *then = tr_list_metadata(model, key);
    if (tr__train_given(t, s->name)) {
        bool same = then && tr__train_value(o, now, sizeof now) && is_same(now, then);
        if (!s->fixed || same) return -1;
        return tr__complain(t->command, "--resume: the training in %s was started with%s --%s%s%s: leave --%s out", t->out,
            then ? "" : "out", s->name, then ? " " : "", then ? then : "", s->name);
    }
    bool unset = then && o->into == &t->micro_batch && !strcmp(then, "0");
    if (!then || unset) return -1;
    char option[PATH_MAX + 64];
    snprintf(option, sizeof option, "%s: --%s", path, s->name);
    const char *value = tr__train_own(t, strdup(then));
    if (!value) return tr__complain(t->command, "out of memory");
    return tr__option_set(t->command, o, option, value) ? -1 : TR__EXIT_FAILED;
}

int tr__train_restore(tr__train *t)
{
    TR_SCOPE;
    char path[PATH_MAX];
    int64_t step;
    tr_tensor_list *model;
    tr_status status = tr_checkpoint_find_whole(t->out, path, &step);
    if (status != TR_OK) return tr__complain(t->command, "nothing to resume: %s", tr_error_message());
    if (!strcmp(path, t->out))
        return tr__complain(t->command, "--out %s is a checkpoint: give the folder that it is in", t->out);
    if (tr_checkpoint_load(path, &model, NULL) != TR_OK) return tr__complain(t->command, "%s", tr_error_message());
    const char *name = tr_list_metadata(model, "trireme.model"), *content = tr_list_metadata(model, "trireme.content");
    if (!name || strcmp(name, t->model) != 0 || !content)
        return tr__complain(t->command, "%s was not written by `trireme %s`, which alone can go on with it", path, t->command);
    char word[PATH_MAX];
    const char *out = tr__shell_word(t->out, word, sizeof word);
    if (tr_check_finite(model) != TR_OK)
        return tr__complain(t->command, "--resume: %s: %s. Going on would not mend that: remove the checkpoint, and those before it "
            "that `trireme checkpoint verify %s` finds not finite", path, tr_error_message(), out);
    snprintf(t->content, sizeof t->content, "%s", content);
    int code = -1;
    const tr__setting *s;
    for (int i = 0; code < 0 && (s = tr__train_setting(t, i)); i++) code = restore_setting(t, s, path, model);
    return code;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* No overlong forms, no surrogates (RFC 3629). */
static bool is_utf8(const char *text)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int more = *s < 0x80 ? 0 : *s < 0xc0 ? -1 : *s < 0xe0 ? 1 : *s < 0xf0 ? 2 : *s < 0xf8 ? 3 : -1;
        if (more < 0) return false;
        uint32_t c = more ? *s & (0x3fu >> more) : *s;
        s++;
        for (int i = 0; i < more; i++, s++) {
            if ((*s & 0xc0) != 0x80) return false;
            c = c << 6 | (*s & 0x3fu);
        }
        if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    }
    return true;
}

/* A checkpoint's first save would fail, and with it the training; and results would be no JSON. */
static int check_text(const tr__train *t, const char *name, const char *value)
{
    if (!value || is_utf8(value)) return -1;
    return tr__complain(t->command, "--%s: \"%s\" is not UTF-8, and checkpoints and results are written in that: give another name",
        name, value);
}

static int check_texts(const tr__train *t)
{
    int code = check_text(t, "out", t->out);
    const tr__setting *s;
    for (int i = 0; code < 0 && (s = tr__train_setting(t, i)); i++) {
        const tr__option *o = tr__option_named(t->options, s->name);
        if (o->type == TR__OPTION_TEXT) code = check_text(t, s->name, *(const char *const *)o->into);
    }
    return code;
}

/* ---- The data ---------------------------------------------------------------------------------------------------- */

int tr__train_content(tr__train *t, const char *content)
{
    size_t length = strlen(t->content); /* of images checkpoints once said how many there are, and no more */
    bool same = strncmp(content, t->content, length) == 0 && (!content[length] || content[length] == ',');
    if (t->resume && !same)
        return tr__complain(t->command, "--resume: %s is not what the training in %s was started with (%s then, %s now)", t->data,
            t->out, t->content, content);
    snprintf(t->content, sizeof t->content, "%s", content);
    return -1;
}

int64_t tr__train_local_ranks(const tr__train *t)
{
    return t->under_launcher ? t->local_ranks : t->ranks;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static int make_folders(tr__train *t, const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof part) return tr__complain(t->command, "the name of the folder --out is too long");
    for (size_t i = 1; i <= length; i++) {
        if (path[i] && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) == 0) {
            if (!t->made_from) t->made_from = i;
        } else if (errno != EEXIST) {
            return tr__complain(t->command, "cannot make the folder %s: %s", part, strerror(errno));
        }
    }
    return -1;
}

/* From the innermost outwards, as far as this run has made them and they are empty: rmdir() takes no others. */
void tr__train_clear_away(const tr__train *t)
{
    char part[PATH_MAX];
    size_t length = t->out ? strlen(t->out) : 0;
    if (!t->made_from || length >= sizeof part) return;
    for (size_t i = length; i >= t->made_from; i--) {
        if (t->out[i] && t->out[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, t->out);
        rmdir(part);
    }
}

/* A folder of this run's own: resnet18, resnet18-2, … */
static int make_own_folder(tr__train *t)
{
    for (int n = 1; n < 10000; n++) {
        char *name = NULL;
        char number[16] = "";
        if (n > 1) snprintf(number, sizeof number, "-%d", n);
        if (asprintf(&name, "%s%s", t->kind->folder(t), number) < 0) name = NULL;
        if (name && mkdir(name, 0777) == 0) {
            t->made_from = strlen(name);
            t->out = tr__train_own(t, name);
            return t->out ? -1 : tr__complain(t->command, "out of memory");
        }
        int error = errno;
        free(name);
        if (error != EEXIST)
            return tr__complain(t->command, "cannot make a folder for the results here: %s; name another with --out",
                strerror(error));
    }
    return tr__complain(t->command, "name a folder for the results with --out");
}

static int check_folder(tr__train *t)
{
    if (!t->out) return make_own_folder(t);
    char path[PATH_MAX];
    int64_t step;
    if (!t->resume && tr_checkpoint_find(t->out, path, &step) == TR_OK)
        return tr__complain(t->command, "%s holds a training at step %" PRId64 ": go on with --resume, or name another folder",
            t->out, step);
    int code = make_folders(t, t->out);
    if (code >= 0) return code;
    struct stat s;
    if (stat(t->out, &s) == 0 && !S_ISDIR(s.st_mode)) return tr__complain(t->command, "--out %s is no folder", t->out);
    if (access(t->out, W_OK | X_OK) < 0)
        return tr__complain(t->command, "cannot write into %s: %s", t->out, strerror(errno));
    return -1;
}

/* Rank 0 writes; the others only a profile, for which tr_fit() makes the folder. */
static int check_files(tr__train *t)
{
    if (t->under_launcher && t->rank > 0) return -1;
    int code = check_folder(t); /* which may be the results' */
    return code < 0 ? tr__check_writable(t->command, t->json) : code;
}

/* Flags that exclude each other, and names that every rank would complain of. */
static int check_flags(const tr__train *t)
{
    if (t->step_in_backward && t->clip > 0)
        return TR__MISUSE(t->command,
            "--step-in-backward: the norm of all gradients is known when they have been used: give --clip 0");
    if (t->step_in_backward && t->stop_on_spike)
        return TR__MISUSE(t->command,
            "--step-in-backward: a spike is known when gradients have been used: leave out --stop-on-spike");
    if (t->roll_back && !t->check_replicas)
        return TR__MISUSE(t->command, "--roll-back: nothing ever finds that ranks differ with --check-replicas 0");
    if (tr_check_allow_different(t->allow_different) != TR_OK)
        return TR__MISUSE(t->command, "--allow-different: %s", tr_error_message());
    return -1;
}

/* A checkpoint has a validation loss where one was measured at its step. The last step is both validated and saved. */
static int check_keep_best(const tr__train *t)
{
    if (!t->keep_best || !t->eval_every || !t->save_every) return -1;
    int64_t a = t->eval_every, b = t->save_every;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    int64_t both = (int64_t)t->eval_every / a * t->save_every; /* the least common multiple */
    if (both < t->steps || t->eval_every >= t->steps || t->save_every >= t->steps) return -1;
    return TR__MISUSE(t->command, "--keep-best: validations every %d steps and checkpoints every %d never fall on the same step "
        "before the last: make --save-every a multiple of --eval-every", t->eval_every, t->save_every);
}

/* A file that does not fit is found before any rank is started. */
static int check_init(tr__train *t)
{
    TR_SCOPE;
    tr_module *model;
    if (t->resume || !t->init || t->kind->model(t, true, &model) == TR_OK) return -1;
    return tr__complain(t->command, "--init: %s", tr_error_message());
}

int tr__train_check(tr__train *t)
{
    int world = t->under_launcher ? t->world : t->ranks;
    if (t->under_launcher && tr__train_given(t, "ranks") && t->ranks != world)
        return TR__MISUSE(t->command, "--ranks %d, but the launcher has started %d: leave --ranks out", t->ranks, world);
    const char *restarts = t->under_launcher ? getenv("TORCHELASTIC_MAX_RESTARTS") : NULL;
    if (t->under_launcher && t->max_restarts > (restarts ? atoi(restarts) : 0))
        return TR__MISUSE(t->command, "--max-restarts %d, but the launcher starts ranks again %s times: leave it out here, and "
            "give it to `trireme run`", t->max_restarts, restarts ? restarts : "0");
    if (t->min_ranks && (t->under_launcher || !t->max_restarts))
        return TR__MISUSE(t->command, "--min-ranks %d, but %s", t->min_ranks, t->under_launcher
            ? "it is the launcher that starts ranks again: leave it out here, and give it to `trireme run`"
            : "without --max-restarts no ranks are started again");
    if (restarts) t->max_restarts = atoi(restarts);
    if (restarts && t->max_restarts > 0 && !t->out)
        return TR__MISUSE(t->command,
            "ranks that are started again (--max-restarts) look for what has been saved: give --out FOLDER");
    if (t->under_launcher && world > 1 && t->profile && !t->out)
        return TR__MISUSE(t->command, "--profile: give --out FOLDER, which every rank writes into");
    int code = check_flags(t);
    if (code < 0) code = tr__check_device(t->command, t->device, t->backend, t->ranks);
    if (code < 0) code = check_keep_best(t);
    if (code < 0) code = check_texts(t);
    if (code < 0) code = t->kind->check(t, world);
    if (code < 0) code = check_init(t);
    return code < 0 ? check_files(t) : code;
}
