/* The training loop: steps, validations, checkpoints, metrics, until the end or until a rank wants to stop. */
#include "base/clock.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/given.h"
#include "base/memory.h"
#include "base/profile.h"
#include "data/text/unicode.h"
#include "device/device.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/profile_files.h"
#include "train/replica_check.h"
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char metrics_name[] = "metrics.csv";

typedef struct fit {
    const tr_fit_options *options;
    tr_trainer *trainer;
    int64_t from, until, validate_every, save_every;
    bool roll_back;
    bool profiling;
    tr__error *profile_error; /* NULL: none */
    int64_t start_ns, resumed_ns; /* of this call; and what earlier runs took */
    int64_t saved_step;  /* the folder holds this training at that step; -1: at none that is known */
    int64_t back_step;   /* of the checkpoint that replicas went back to last; -1: none */
    int back_times;      /* how often in a row */
    int64_t skipped;     /* bad samples before this call */
    int folder_fd;       /* rank 0's, locked; -1 elsewhere */
    double *step_ms;     /* of the steps of this call */
    int64_t steps;
    size_t step_room;
    tr_fit_report *report;
} fit;

/* ---- Files of rank 0 --------------------------------------------------------------------------------------------- */

/* Two trainings must not write into one folder. The lock ends with the process. */
static tr_status lock_folder(fit *f)
{
    const char *folder = f->options->folder;
    TR__TRY(tr__folder_make(folder));
    f->folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->folder_fd < 0) return tr__fail_errno(TR_IO, errno, "cannot open %s", folder);
    if (tr__checkpoint_lock(f->folder_fd)) return TR_OK;
    return tr__fail(TR_STATE, "another training is writing into %s", folder);
}

/* Checked at the start: the first save may be hours away. */
static tr_status check_about(const tr_tensor_list *about)
{
    TR__TRY(tr_status_of(about));
    for (int i = 0; about && i < tr_list_metadata_count(about); i++) {
        const char *key = tr_list_metadata_key(about, i), *value = tr_list_metadata(about, key);
        if (!tr__is_utf8(key, strlen(key)) || !tr__is_utf8(value, strlen(value)))
            return tr__fail(TR_INVALID, "fit: about's metadata \"%s\" is not UTF-8: \"%s\"", key, value);
    }
    return TR_OK;
}

/* The lock is on the folder that was opened. Another one may be found under its name by now, which another training can
 * lock, or none. */
static tr_status check_folder(const fit *f)
{
    if (f->folder_fd < 0) return TR_OK;
    const char *folder = f->options->folder;
    struct stat ours, there;
    if (fstat(f->folder_fd, &ours) < 0) return tr__fail_errno(TR_IO, errno, "cannot look at %s", folder);
    if (ours.st_nlink == 0)
        return tr__fail(TR_STATE, "fit: the folder %s was removed while this training wrote into it", folder);
    if (stat(folder, &there) == 0 && there.st_dev == ours.st_dev && there.st_ino == ours.st_ino) return TR_OK;
    char link[64], now[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", f->folder_fd);
    ssize_t length = readlink(link, now, sizeof now);
    return tr__fail(
        TR_STATE,
        "fit: %s is not the folder any more that this training writes into, which is now %.*s: go on with it there "
        "(.resume)",
        folder, length < 0 ? 0 : (int)length, now);
}

/* A checkpoint from before there was a history has its rows in the file alone: they stay under another name. */
static tr_status set_old_metrics_aside(const fit *f)
{
    int64_t count;
    tr_metrics_rows(f->trainer->metrics, &count);
    if (count || f->trainer->step == 0) return TR_OK;
    char aside[64];
    snprintf(aside, sizeof aside, "metrics-to-%" PRId64 ".csv", f->trainer->step);
    if (faccessat(f->folder_fd, aside, F_OK, 0) == 0) return TR_OK; /* an earlier resumption has done so */
    if (renameat(f->folder_fd, metrics_name, f->folder_fd, aside) == 0)
        tr__log(TR_LOG_WARN, "the checkpoint holds no metrics: those of before are in %s/%s", f->options->folder,
                aside);
    else if (errno != ENOENT)
        return tr__fail_errno(TR_IO, errno, "cannot rename %s/%s to %s", f->options->folder, metrics_name, aside);
    return TR_OK;
}

/* Does the folder hold this step of this training? It does when it was saved here, or the training was resumed from here; one that
 * goes on from a checkpoint elsewhere has nothing here yet to end with or to go back to, or what another one has saved at that step. */
static bool is_saved(const fit *f)
{
    const tr_trainer *t = f->trainer;
    struct stat here;
    char path[PATH_MAX];
    int64_t step;
    bool saved_here = t->saved_at == t->step && fstat(f->folder_fd, &here) == 0 && here.st_dev == t->saved_in.st_dev &&
        here.st_ino == t->saved_in.st_ino;
    return saved_here && tr_checkpoint_find(f->options->folder, path, &step) == TR_OK && step == t->step;
}

/* Removes what a killed process was writing, and makes metrics and chart match the checkpoint that is resumed from. */
static tr_status open_files(fit *f)
{
    const tr_fit_options *o = f->options;
    tr_trainer *t = f->trainer;
    if (!o->folder || t->rank != 0) return TR_OK;
    TR__TRY(check_about(o->about));
    TR__TRY(lock_folder(f));
    TR__TRY(tr__checkpoint_make_room(f->folder_fd, o->folder, t->step)); /* the first save may be hours away */
    tr__checkpoint_clear_away(f->folder_fd, o->folder);
    if (is_saved(f)) f->saved_step = t->step;
    TR__TRY(set_old_metrics_aside(f));
    char path[PATH_MAX];
    TR__TRY(tr__path_join(path, o->folder, metrics_name));
    TR__TRY(tr__metrics_open_file(t->metrics, path, t->task->item, t->task->accuracy));
    return o->draw ? o->draw(t->metrics, o->folder) : TR_OK;
}

static tr_status save(fit *f)
{
    const tr_fit_options *o = f->options;
    tr_trainer *t = f->trainer;
    if (!o->folder || t->rank != 0 || f->saved_step == t->step) return TR_OK;
    const tr_trainer_save_options how = {.size = sizeof how, .trainer = t, .folder = o->folder, .about = o->about, .keep = o->keep,
        .keep_best = o->keep_best};
    TR__TRY(tr__trainer_save(t, f->folder_fd, &how));
    f->saved_step = t->step;
    if (fstat(f->folder_fd, &t->saved_in) == 0) t->saved_at = t->step;
    TR__TRY(tr_metrics_sync(t->metrics));
    if (o->draw) TR__TRY(o->draw(t->metrics, o->folder));
    if (o->on_save) o->on_save(t->step, o->user);
    return TR_OK;
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

static double seconds_since(int64_t ns)
{
    return 1e-9 * (double)(tr__now_ns() - ns);
}

/* The first two steps allocate memory and create primitives that later steps reuse. */
static bool is_profiled(const fit *f)
{
    int64_t first = f->until - f->from > 2 ? 2 : 0;
    return f->steps >= first && f->steps - first < f->options->profile_steps;
}

/* A profile that cannot be written does not end the training: it is reported at the end. */
static void end_profile(fit *f)
{
    tr__profile_stop();
    f->profiling = false;
    if (tr__profile_write(f->options->folder, f->trainer->rank, f->trainer->net) != TR_OK) f->profile_error = tr__error_take();
}

static tr_status train_step(fit *f, tr_metrics_row *row, bool *stop)
{
    tr_trainer *t = f->trainer;
    if (!is_profiled(f)) return tr_trainer_step(t, row, stop);
    if (!f->profiling) TR__TRY(tr__trainer_tell(t, tr__profile_start()));
    f->profiling = true;
    tr__span span = {.kind = TR__SPAN_STEP, .begin = tr__now_ns()};
    tr__memory_watch watch = tr__memory_watch_begin(0);
    tr_status status = tr_trainer_step(t, row, stop);
    tr__memory_watch_end(&watch, &span.peak, &span.kept);
    snprintf(span.name, sizeof span.name, "step %lld", (long long)t->step);
    tr__profile_add(span);
    return status;
}

static bool validation_is_due(const fit *f)
{
    int64_t step = f->trainer->step;
    bool asked = f->validate_every && step % f->validate_every == 0;
    return step > 0 && (asked || step >= f->trainer->plan.steps);
}

/* A profile covers the steps only, not validations. */
static tr_status validate(fit *f, tr_score *score)
{
    if (f->profiling) tr__profile_pause(true);
    tr_status status = tr_trainer_validate(f->trainer, score);
    if (f->profiling) tr__profile_pause(false);
    return status;
}

static bool wants_to_stop(void *user)
{
    const tr_fit_options *o = ((const fit *)user)->options;
    return o->should_stop && o->should_stop(o->user);
}

static tr_status step(fit *f, bool *stop)
{
    const tr_fit_options *o = f->options;
    tr_trainer *t = f->trainer;
    tr_metrics_row row;
    tr_score score = {.loss = NAN, .accuracy = NAN};
    int64_t start = tr__now_ns();
    *stop = wants_to_stop(f);
    TR__TRY(train_step(f, &row, stop));
    if (!tr__grow(&f->step_ms, (size_t)f->steps, &f->step_room, sizeof *f->step_ms)) /* a schedule may be very long */
        return tr__trainer_tell(t, tr__fail(TR_NO_MEMORY, "fit: no memory for the times of %" PRId64 " steps", f->steps + 1));
    f->step_ms[f->steps++] = 1e3 * seconds_since(start);
    if (f->profiling && !is_profiled(f)) end_profile(f);

    /* A run that stops on the way measures nothing that an unbroken one would not. */
    bool saves = *stop || t->step >= f->until || (f->save_every && t->step % f->save_every == 0);
    tr_status judged = validation_is_due(f) ? validate(f, &score) : TR_OK;
    tr__error *first = judged == TR_OK ? NULL : tr__error_take(); /* save the step all the same */
    if (judged == TR_OK && saves) TR__TRY(tr__trainer_tell(t, tr__replica_check(t)));
    if (judged == TR_OK) {
        row.validation_loss = score.loss;
        row.validation_accuracy = score.accuracy;
    }
    row.seconds = t->seconds = seconds_since(f->resumed_ns);
    if (isnan(f->report->initial_loss)) f->report->initial_loss = row.loss;
    f->report->final_loss = row.loss;
    tr_status status = t->metrics ? tr_metrics_add(t->metrics, &row) : TR_OK;
    if (o->on_step && status == TR_OK && judged == TR_OK) o->on_step(&row, o->user);
    if (status == TR_OK) status = check_folder(f);
    if (saves && status == TR_OK) status = save(f);
    if (status != TR_OK && check_folder(f) != TR_OK) status = TR_STATE; /* why it could not be written */
    return judged == TR_OK ? tr__trainer_tell(t, status) : tr__error_restore(first);
}

/* Whatever ended a validation before its end, a lost rank say, has left a checkpoint of the step without the score. */
static tr_status make_up_for_validation(fit *f)
{
    tr_trainer *t = f->trainer;
    if (t->validated_step == t->step || !validation_is_due(f)) return TR_OK;
    TR_SCOPE;
    tr_score score;
    TR__TRY(validate(f, &score));
    tr_status status = t->metrics ? tr__metrics_set_score(t->metrics, t->step, &score) : TR_OK;
    f->saved_step = -1;
    return tr__agree(t->plan.group, "fit", status == TR_OK ? save(f) : status, NULL);
}

/* Ranks that stop or validate at different steps would wait for each other forever. */
static tr_status compare_ranks(const fit *f)
{
    tr__facts facts = {0};
    tr__facts_say(&facts, "stop_at", "%" PRId64, f->until);
    tr__facts_say(&facts, "validate_every", "%" PRId64, f->validate_every);
    return tr__agree_once(f->trainer->plan.group, "fit", TR_OK, &facts);
}

/* Replicas differ. A training may go back to a checkpoint a few times: a difference that comes back again and again is
 * not a stray bit. */
static tr_status roll_back(fit *f)
{
    enum { MOST_TIMES = 3 };
    tr_trainer *t = f->trainer;
    int64_t from = t->step;
    char why[1024];
    snprintf(why, sizeof why, "%s", tr_error_message());
    tr_status status = tr__agree(t->plan.group, "fit", check_folder(f), NULL);
    if (status == TR_OK) status = tr__trainer_go_back(t, f->options->folder);
    if (status != TR_OK) return tr__fail(status, "%s; cannot go back to a checkpoint: %s", why, tr_error_message());

    f->back_times = t->step == f->back_step ? f->back_times + 1 : 1;
    f->back_step = t->step;
    if (f->back_times > MOST_TIMES) {
        t->common_failure = true;
        return tr__fail(TR_MISMATCH, "%s; went back to step %" PRId64 " %d times, and it happened again", why, t->step,
                        MOST_TIMES);
    }
    f->report->rolled_back++;
    if (t->step == 0) f->report->initial_loss = NAN; /* the first step comes again */
    if (t->rank != 0) return TR_OK;
    tr__log(TR_LOG_WARN, "%s: going back from step %" PRId64 " to the checkpoint of step %" PRId64, why, from, t->step);
    f->saved_step = t->step;
    return TR_OK;
}

/* Rank 0 saves: when, and whether to go back to what it has saved, is what its options say. A training that is to go
 * back may have to before its first save. */
static tr_status begin_saving(fit *f)
{
    tr_trainer *t = f->trainer;
    int64_t asked[] = {f->options->save_every, f->options->roll_back, f->options->folder != NULL};
    if (t->world_size > 1) TR__TRY(tr_broadcast(t->plan.group, asked, 3, .dtype = TR_I64));
    if (asked[2]) TR__TRY(tr__trainer_check_unsharded(t));
    f->save_every = asked[0];
    f->roll_back = asked[1] && t->world_size > 1;
    if (!f->roll_back) return TR_OK;
    tr_status status = TR_OK;
    if (!t->plan.check_replicas)
        status = tr__fail(TR_INVALID, "fit: .roll_back, but replicas are never compared: the trainer has .check_replicas = 0");
    else if (!t->rank && !f->options->folder)
        status = tr__fail(TR_INVALID, "fit: .roll_back needs a .folder for checkpoints");
    else
        status = save(f);
    return tr__agree(t->plan.group, "fit", status, NULL);
}

static tr_status run(fit *f)
{
    TR__TRY(compare_ranks(f));
    TR__TRY(tr__agree(f->trainer->plan.group, "fit", open_files(f), NULL));
    int64_t count = 0;
    const tr_metrics_row *rows = f->trainer->metrics ? tr_metrics_rows(f->trainer->metrics, &count) : NULL;
    if (count) {
        f->report->initial_loss = rows[0].loss;
        f->report->final_loss = rows[count - 1].loss;
    }
    TR__TRY(begin_saving(f));
    TR__TRY(make_up_for_validation(f));
    bool done = f->trainer->step >= f->until; /* before this call, but perhaps not in this folder */
    if (done) TR__TRY(tr__agree(f->trainer->plan.group, "fit", save(f), NULL));
    f->report->first_step_ms = 1e3 * seconds_since(f->start_ns);
    bool stop = false;
    while (f->trainer->step < f->until && !stop) {
        TR_SCOPE;
        tr_status status = step(f, &stop);
        if (f->roll_back && f->trainer->replicas_differ) {
            stop = false; /* a rank that wants to stop still does after the next step */
            TR__TRY(roll_back(f));
            continue;
        }
        if (status != TR_CANCELLED || f->trainer->world_size > 1 || !wants_to_stop(f)) {
            TR__TRY(status);
            continue;
        }
        /* A worker of the loader hangs, in a validation or in a step that has changed nothing so far: what was learned
         * before is saved. */
        stop = f->report->stopped = true;
        if (f->steps) TR__TRY(save(f));
    }
    if (f->profiling) end_profile(f);
    f->report->stopped |= stop && f->trainer->step < f->until;
    return TR_OK;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

int tr__by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the times. */
static void report_times(fit *f)
{
    tr_fit_report *r = f->report;
    double sum = 0;
    for (int64_t i = 0; i < f->steps; i++) sum += f->step_ms[i];
    r->step_ms_median = NAN;
    if (!f->steps) return;
    qsort(f->step_ms, (size_t)f->steps, sizeof *f->step_ms, tr__by_value);
    r->step_ms_median = (f->step_ms[(f->steps - 1) / 2] + f->step_ms[f->steps / 2]) / 2;
    r->items_per_s = (double)(f->steps * f->trainer->plan.batch * f->trainer->items) / (1e-3 * sum);
}

/* Memory and skipped samples, of all ranks. */
static tr_status report_ranks(fit *f)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    int64_t most = (int64_t)usage.ru_maxrss * 1024, sums[] = {most, f->report->skipped};
    if (f->trainer->world_size > 1) {
        TR__TRY(tr_all_reduce(f->trainer->plan.group, &most, 1, .dtype = TR_I64, .op = TR_MAX));
        TR__TRY(tr_all_reduce(f->trainer->plan.group, sums, 2, .dtype = TR_I64));
    }
    f->report->peak_rss_bytes = most;
    f->report->peak_rss_bytes_sum = sums[0];
    f->report->skipped = sums[1];
    return TR_OK;
}

static tr_status fit_all(fit *f)
{
    f->report->metrics = tr__scope_ref(f->trainer->metrics);
    TR_SCOPE;
    const tr__task *task = f->trainer->task;
    if (task->stop_when) task->stop_when(f->trainer, f->options->should_stop ? wants_to_stop : NULL, f);
    tr_status status = run(f);
    if (task->stop_when) task->stop_when(f->trainer, NULL, NULL);
    if (f->profiling) tr__profile_stop(); /* it failed */
    report_times(f);
    f->report->skipped = tr_trainer_skipped(f->trainer) - f->skipped;
    if (status == TR_OK) status = report_ranks(f);
    if (status == TR_OK && f->profile_error)
        status = tr__fail_context(tr__fail_stored(f->profile_error), "trained, but without a profile");
    tr__error_unref(f->profile_error);
    f->report->seconds = seconds_since(f->start_ns);
    f->report->validation_loss = f->trainer->validation_loss;
    f->report->best_validation_loss = f->trainer->best_validation_loss;
    f->report->validation_accuracy = f->trainer->validation_accuracy;
    f->report->best_validation_accuracy = f->trainer->best_validation_accuracy;
    f->report->common_failure = f->trainer->common_failure;
    if (f->trainer->metrics) tr__metrics_close_file(f->trainer->metrics);
    free(f->step_ms);
    if (f->folder_fd >= 0) {
        flock(f->folder_fd, LOCK_UN); /* a child that was forked meanwhile has the descriptor, and the lock, too */
        close(f->folder_fd);
    }
    return status;
}

static tr_status check_options(const tr_fit_options *options)
{
    int64_t validate_every = TR__OR(options, validate_every, 250);
    if (options->stop_at < 0 || validate_every < 0 || options->save_every < 0)
        return tr__fail(TR_INVALID, "fit: .stop_at, .validate_every and .save_every are numbers of steps, 0 and more, not %" PRId64
            ", %" PRId64 " and %" PRId64, options->stop_at, validate_every, options->save_every);
    int keep = TR__OR(options, keep, 1);
    if (keep < 1 || keep > TR__MOST_KEPT) /* the first save may be hours away */
        return tr__fail(TR_INVALID, "fit: .keep is a number of checkpoints, 1 to %d, not %d", TR__MOST_KEPT, keep);
    if (options->profile_steps < 0 || (options->profile_steps && !options->folder))
        return tr__fail(TR_INVALID, "fit: profile_steps is a number of steps, 0 and more, and a profile needs a folder");
    return TR_OK;
}

tr_status tr_fit_with(const tr_fit_options *options)
{
    TR__CALLED_AT(options->file, options->line);
    TR__TRY(tr_status_of(options->trainer));
    tr_fit_report unwanted, *report = options->report ? options->report : &unwanted;
    *report = (tr_fit_report){.initial_loss = NAN, .final_loss = NAN, .step_ms_median = NAN};
    tr_trainer *t = options->trainer;
    if (!t) return tr__fail(TR_INVALID, "fit: no trainer");
    tr_status own = check_options(options);
    if (own != TR_OK) return tr__agree(t->plan.group, "fit", own, NULL); /* the others compare their options, and hear of it there */
    t->common_failure = false; /* that of an earlier call */
    int64_t now = tr__now_ns(), until = options->stop_at ? options->stop_at : t->plan.steps;
    fit f = {
        .options = options,
        .trainer = t,
        .from = t->step,
        .until = until < t->plan.steps ? until : t->plan.steps,
        .validate_every = TR__OR(options, validate_every, 250),
        .start_ns = now,
        .resumed_ns = now - (int64_t)(1e9 * t->seconds),
        .back_step = -1,
        .saved_step = -1,
        .skipped = tr_trainer_skipped(t),
        .folder_fd = -1,
        .report = report,
    };
    return fit_all(&f);
}
