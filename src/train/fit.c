/* The training loop: steps, validations, checkpoints, metrics, until the end or until somebody wants to stop. */
#include "base/clock.h"
#include "base/folder.h"
#include "base/profile.h"
#include "data/unicode.h"
#include "device/device.h"
#include "train/checkpoint.h"
#include "train/profile_files.h"
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct fit {
    const tr_fit_options *options;
    tr_trainer *trainer;
    int64_t from, until, validate_every;
    bool profiling;
    tr__error *profile_error; /* NULL: none */
    int64_t start_ns, resumed_ns; /* of this call; and what earlier runs took */
    int64_t saved_step;
    int folder_fd;       /* rank 0's, locked; -1 elsewhere */
    tr_metrics *metrics; /* rank 0's, or NULL */
    double *step_ms;     /* of the steps of this call */
    int64_t steps, capacity;
    tr_fit_report *report;
} fit;

/* ---- Files of rank 0 --------------------------------------------------------------------------------------------- */

/* Two trainings that write into one folder would spoil both. The lock goes with the process. */
static tr_status lock_folder(fit *f)
{
    const char *folder = f->options->folder;
    TR__TRY(tr__folder_make(folder, 0777));
    f->folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->folder_fd < 0) return tr__fail_errno(TR_IO, errno, "cannot open %s", folder);
    if (flock(f->folder_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return TR_OK;
    return tr__fail(TR_STATE, "another training is writing into %s", folder);
}

/* To save the steps of another training, or those behind, would throw away what has come further. */
static tr_status check_steps(const fit *f)
{
    const char *folder = f->options->folder;
    int64_t newest, step = f->trainer->step;
    TR__TRY(tr__checkpoint_newest(f->folder_fd, folder, &newest));
    if (newest <= step) return TR_OK;
    return tr__fail(TR_STATE,
        "fit: %s holds a training at step %" PRId64 ", and this one is at step %" PRId64
        ": go on with that one (.resume), or give another folder", folder, newest, step);
}

/* Hours later would be late to learn that it cannot be saved. */
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

static tr_status open_files(fit *f)
{
    if (!f->options->folder || f->trainer->rank != 0) return TR_OK;
    TR__TRY(check_about(f->options->about));
    TR__TRY(lock_folder(f));
    TR__TRY(check_steps(f));
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/metrics.csv", f->options->folder) >= (int)sizeof path)
        return tr__fail(TR_INVALID, "the folder's name is too long: %.60s…", f->options->folder);
    const tr__task *task = f->trainer->task;
    f->metrics = tr_metrics_open(path, f->trainer->step, .item = task->item, .accuracy = task->accuracy);
    return tr_status_of(f->metrics);
}

/* Columns of the metrics as series: step, loss, and validation loss where there is one. */
static tr_status draw_chart(const char *path, const tr_metrics_row *rows, int64_t count)
{
    if (count > INT_MAX) return TR_OK;
    double *columns = malloc((size_t)(4 * count + 1) * sizeof *columns);
    if (!columns) return tr__fail(TR_NO_MEMORY, "no memory for the chart %s", path);
    double *x = columns, *loss = x + count, *vx = loss + count, *validation = vx + count;
    int measured = 0;
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)rows[i].step;
        loss[i] = rows[i].loss;
        if (isnan(rows[i].validation_loss)) continue;
        vx[measured] = x[i];
        validation[measured++] = rows[i].validation_loss;
    }
    const tr_series series[] = {{"loss", x, loss, (int)count}, {"validation loss", vx, validation, measured}};
    tr_status status = tr_chart_svg(path, "Loss", series, 2);
    free(columns);
    return status;
}

static tr_status save(fit *f)
{
    const tr_fit_options *o = f->options;
    tr_trainer *t = f->trainer;
    if (!o->folder || t->rank != 0 || f->saved_step == t->step) return TR_OK;
    TR__TRY(tr_metrics_sync(f->metrics)); /* a checkpoint's rows are on the disk before it is */
    TR__TRY(tr_trainer_save(t, o->folder, o->about));
    f->saved_step = t->step;
    char path[PATH_MAX];
    int64_t count;
    const tr_metrics_row *rows = tr_metrics_rows(f->metrics, &count);
    if (snprintf(path, sizeof path, "%s/loss.svg", o->folder) < (int)sizeof path)
        TR__TRY(draw_chart(path, rows, count));
    if (o->on_save) o->on_save(t->step, o->user);
    return TR_OK;
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

static double seconds_since(int64_t ns)
{
    return 1e-9 * (double)(tr__now_ns() - ns);
}

/* The first two steps make what the others find made. */
static bool is_profiled(const fit *f)
{
    int64_t first = f->until - f->from > 2 ? 2 : 0;
    return f->steps >= first && f->steps - first < f->options->profile_steps;
}

/* What cannot be written ends no training: it is told when that is over. */
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
    if (!f->profiling) TR__TRY(tr__profile_start());
    f->profiling = true;
    tr__span span = {.kind = TR__SPAN_STEP, .begin = tr__now_ns()};
    tr__memory_watch watch = tr__memory_watch_begin(0);
    tr_status status = tr_trainer_step(t, row, stop);
    tr__memory_watch_end(&watch, &span.peak, &span.kept);
    snprintf(span.name, sizeof span.name, "step %lld", (long long)t->step);
    tr__profile_add(span);
    return status;
}

/* As many as there come to be: a schedule may be as good as endless. */
static tr_status note_time(fit *f, double ms)
{
    if (f->steps == f->capacity) {
        int64_t capacity = f->capacity ? 2 * f->capacity : 1024;
        double *grown = reallocarray(f->step_ms, (size_t)capacity, sizeof *grown);
        if (!grown) return tr__fail(TR_NO_MEMORY, "fit: no memory for the times of %" PRId64 " steps", capacity);
        f->step_ms = grown;
        f->capacity = capacity;
    }
    f->step_ms[f->steps++] = ms;
    return TR_OK;
}

/* A profile has the steps alone. */
static tr_status validate(fit *f, tr_metrics_row *row)
{
    tr_score score;
    if (f->profiling) tr__profile_pause(true);
    tr_status status = tr_trainer_validate(f->trainer, &score);
    if (f->profiling) tr__profile_pause(false);
    if (status != TR_OK) return status;
    row->validation_loss = score.loss;
    row->validation_accuracy = score.accuracy;
    return TR_OK;
}

static tr_status step(fit *f, bool *stop)
{
    const tr_fit_options *o = f->options;
    tr_trainer *t = f->trainer;
    tr_metrics_row row;
    int64_t start = tr__now_ns();
    *stop = o->should_stop && o->should_stop(o->user);
    TR__TRY(train_step(f, &row, stop));
    TR__TRY(note_time(f, 1e3 * seconds_since(start)));
    if (f->profiling && !is_profiled(f)) end_profile(f);

    /* A run that stops on the way measures nothing that an unbroken one would not. */
    bool last = t->step >= f->until, finished = t->step >= t->plan.steps;
    bool saves = *stop || last || (o->save_every && t->step % o->save_every == 0);
    tr_status judged = t->step % f->validate_every == 0 || finished ? validate(f, &row) : TR_OK;
    tr__error *first = judged == TR_OK ? NULL : tr__error_take(); /* what was learned is saved all the same */
    t->seconds = seconds_since(f->resumed_ns);
    row.seconds = t->seconds;
    if (isnan(f->report->initial_loss)) f->report->initial_loss = row.loss;
    f->report->final_loss = row.loss;
    tr_status status = f->metrics ? tr_metrics_add(f->metrics, &row) : TR_OK;
    if (o->on_step && status == TR_OK && judged == TR_OK) o->on_step(&row, o->user);
    if (saves && status == TR_OK) status = save(f);
    if (judged != TR_OK) status = tr__fail_stored(first);
    tr__error_unref(first);
    return status;
}

static tr_status run(fit *f)
{
    TR__TRY(tr__trainer_agree(f->trainer, open_files(f), "open its files"));
    if (f->metrics) {
        int64_t count;
        const tr_metrics_row *rows = tr_metrics_rows(f->metrics, &count);
        if (count) {
            f->report->initial_loss = rows[0].loss;
            f->report->final_loss = rows[count - 1].loss;
        }
    }
    f->report->first_step_ms = 1e3 * seconds_since(f->start_ns);
    bool stop = false;
    while (f->trainer->step < f->until && !stop) {
        TR_SCOPE;
        TR__TRY(step(f, &stop));
    }
    if (f->profiling) end_profile(f);
    f->report->stopped = stop && f->trainer->step < f->until;
    return TR_OK;
}

/* ---- The report -------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
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
    qsort(f->step_ms, (size_t)f->steps, sizeof *f->step_ms, by_value);
    r->step_ms_median = (f->step_ms[(f->steps - 1) / 2] + f->step_ms[f->steps / 2]) / 2;
    r->items_per_s = (double)(f->steps * f->trainer->plan.batch * f->trainer->items) / (1e-3 * sum);
}

static tr_status report_memory(fit *f)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) < 0) return TR_OK;
    int64_t most = (int64_t)usage.ru_maxrss * 1024, sum = most;
    if (f->trainer->world_size > 1) {
        TR__TRY(tr_all_reduce(f->trainer->plan.group, &most, 1, .dtype = TR_I64, .op = TR_MAX));
        TR__TRY(tr_all_reduce(f->trainer->plan.group, &sum, 1, .dtype = TR_I64));
    }
    f->report->peak_rss_bytes = most;
    f->report->peak_rss_bytes_sum = sum;
    return TR_OK;
}

static tr_status fit_all(fit *f)
{
    TR_SCOPE;
    tr_status status = run(f);
    if (f->profiling) tr__profile_stop(); /* it failed */
    report_times(f);
    if (status == TR_OK) status = report_memory(f);
    if (status == TR_OK && f->profile_error)
        status = tr__fail_context(tr__fail_stored(f->profile_error), "trained, but without a profile");
    tr__error_unref(f->profile_error);
    f->report->seconds = seconds_since(f->start_ns);
    f->report->validation_loss = f->trainer->validation_loss;
    f->report->best_validation_loss = f->trainer->best_validation_loss;
    f->report->validation_accuracy = f->trainer->validation_accuracy;
    f->report->best_validation_accuracy = f->trainer->best_validation_accuracy;
    f->report->common_failure = f->trainer->common_failure;
    f->report->metrics = f->metrics ? tr_escape(f->metrics) : NULL;
    free(f->step_ms);
    if (f->folder_fd >= 0) close(f->folder_fd);
    return status;
}

tr_status tr_fit_with(const tr_fit_options *options)
{
    TR__TRY(tr_status_of(options->trainer));
    tr_fit_report unwanted, *report = options->report ? options->report : &unwanted;
    *report = (tr_fit_report){.initial_loss = NAN, .final_loss = NAN, .step_ms_median = NAN};
    tr_trainer *t = options->trainer;
    if (!t) return tr__fail(TR_INVALID, "fit: no trainer");
    if (options->stop_at < 0 || options->validate_every < 0 || options->save_every < 0)
        return tr__fail(TR_INVALID, "fit: stop_at, validate_every and save_every are numbers of steps, 0 and more");
    if (options->profile_steps < 0 || (options->profile_steps && !options->folder))
        return tr__fail(TR_INVALID, "fit: profile_steps is a number of steps, 0 and more, and a profile needs a folder");
    int64_t now = tr__now_ns(), until = options->stop_at ? options->stop_at : t->plan.steps;
    fit f = {
        .options = options,
        .trainer = t,
        .from = t->step,
        .until = until < t->plan.steps ? until : t->plan.steps,
        .validate_every = options->validate_every ? options->validate_every : 250,
        .start_ns = now,
        .resumed_ns = now - (int64_t)(1e9 * t->seconds),
        .saved_step = options->folder && t->plan.resume ? t->step : -1,
        .folder_fd = -1,
        .report = report,
    };
    return fit_all(&f);
}
