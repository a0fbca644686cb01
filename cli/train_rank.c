/* What one rank of `trireme train` does: trains, and rank 0 says how it goes. */
#include "train.h"

#include "bench_result.h"
#include "clock.h"
#include "terminal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

/* Process-wide, as signals are: the one that asked this rank to stop, or 0; who sent it, and when. */
static volatile sig_atomic_t stop_signal;
static pid_t stop_sender;
static int64_t stop_ns;

/* The first one asks to stop after the step; a second one, of any kind, ends the process as it usually would. timeout(1)
 * sends its signal to the process and then to the process's group: that is one. */
static void on_stop(int sig, siginfo_t *info, void *context)
{
    (void)context;
    const int64_t at_once_ns = 100000000;
    int64_t now = tr__clock_ns(CLOCK_MONOTONIC);
    bool same = sig == stop_signal && info->si_pid == stop_sender && now - stop_ns < at_once_ns;
    if (stop_signal && !same) {
        signal(sig, SIG_DFL);
        raise(sig); /* it comes when this function returns */
    }
    stop_signal = sig;
    stop_sender = info->si_pid;
    stop_ns = now;
}

/* For the steps: before them nothing is there to save, and a signal ends the process at once, also while it waits for
 * other ranks to join. */
static void watch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_sigaction = on_stop, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
        sigaction(signals[i], NULL, &old);
        if (old.sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL); /* ignored: under nohup */
    }
}

/* ---- A run ------------------------------------------------------------------------------------------------------- */

typedef struct run {
    tr__train *train;
    int rank, world;
    tr_trainer *trainer;
    tr_progress *progress; /* rank 0's, or NULL */
    int64_t until;
    tr_fit_report report;
    double startup_ms;
} run;

static bool should_stop(void *user)
{
    (void)user;
    return stop_signal != 0;
}

static void on_step(const tr_metrics_row *row, void *user)
{
    const run *r = user;
    if (r->progress) tr_progress_step(r->progress, row, r->until);
}

/* What a checkpoint says about itself: enough to build the model again, and to go on. */
static tr_status describe(const tr__train *t, tr_tensor_list *about)
{
    const tr__setting *s;
    TRY(tr_list_set_metadata(about, "trireme.model", t->model));
    TRY(tr_list_set_metadata(about, "trireme.content", t->content));
    for (int i = 0; (s = tr__train_setting(t, i)); i++) {
        char key[64], value[PATH_MAX];
        snprintf(key, sizeof key, "trireme.%s", s->name);
        if (tr__train_value(tr__option_named(t->options, s->name), value, sizeof value))
            TRY(tr_list_set_metadata(about, key, value));
    }
    return t->kind->describe ? t->kind->describe(t, about) : TR_OK;
}

static void introduce(const run *r)
{
    const tr__train *t = r->train;
    int64_t done = tr_trainer_steps(r->trainer);
    int threads = tr_threads(tr_cpu(0));
    t->kind->introduce(t);
    if (*t->begun_with) fprintf(stderr, "Weights from %s\n", t->begun_with);
    fprintf(stderr, "%d rank%s on %s, %d thread%s each, batch %d, %d steps into %s/\n", r->world, r->world > 1 ? "s" : "",
        t->device, threads, threads > 1 ? "s" : "", t->batch, t->steps, t->out);
    if (done) fprintf(stderr, "Going on from step %" PRId64 "\n", done);
}

static tr_status fit(run *r, tr_group *group)
{
    tr__train *t = r->train;
    TRY(t->kind->trainer(t, group, t->resume ? t->out : NULL, &r->trainer));
    tr_tensor_list *about = tr_list_new();
    TRY(describe(t, about));

    r->until = t->stop_at && t->stop_at < t->steps ? t->stop_at : t->steps;
    if (r->rank == 0) {
        introduce(r);
        r->progress = tr_progress_new(stderr, .plain = t->plain, .ascii = !tr__terminal_utf8(), .item = t->kind->item);
    }
    int64_t begun = tr__clock_ns(CLOCK_MONOTONIC);
    watch_signals();
    tr_status status = tr_fit(r->trainer, .folder = t->out, .about = about, .stop_at = t->stop_at, .profile_steps = t->profile,
        .validate_every = t->eval_every, .save_every = t->save_every, .keep = t->keep, .keep_best = t->keep_best,
        .roll_back = t->roll_back, .should_stop = should_stop, .on_step = on_step, .user = r,
        .report = &r->report, .draw = tr_chart_loss);
    r->startup_ms = 1e-6 * (double)(begun - t->started_ns) + r->report.first_step_ms;
    if (r->progress) tr_progress_end(r->progress);
    return status;
}

/* ---- What came of it --------------------------------------------------------------------------------------------- */

static void add_results(cJSON *object, const run *r)
{
    const tr_fit_report *f = &r->report;
    TR__ADD_NUMBERS(object, {"initial_loss", f->initial_loss}, {"final_loss", f->final_loss},
        {"validation_loss", f->validation_loss}, {"best_validation_loss", f->best_validation_loss});
    if (!isnan(f->validation_accuracy)) {
        TR__ADD_NUMBERS(object, {"validation_accuracy", f->validation_accuracy},
            {"best_validation_accuracy", f->best_validation_accuracy});
    }
    char rate[32];
    snprintf(rate, sizeof rate, "%.16ss_per_s", r->train->kind->item);
    TR__ADD_NUMBERS(object, {rate, f->step_ms_median > 0 ? f->items_per_s : NAN}, {"step_ms_median", f->step_ms_median},
        {"peak_rss_mb", (double)f->peak_rss_bytes / (1 << 20)}, {"peak_rss_mb_sum", (double)f->peak_rss_bytes_sum / (1 << 20)},
        {"startup_ms", r->startup_ms}, {"seconds", f->seconds}, {"rolled_back", (double)f->rolled_back},
        {"skipped", (double)f->skipped}, {"step", (double)tr_trainer_steps(r->trainer)});
    cJSON_AddBoolToObject(object, "stopped", f->stopped);
}

static void add_setup(cJSON *object, const run *r)
{
    const tr__train *t = r->train;
    cJSON_AddStringToObject(object, "model", t->model);
    t->kind->report(t, object);
    TR__ADD_NUMBERS(object, {"parameters", (double)t->parameters}, {"batch", t->batch}, {"steps", t->steps}, {"lr", t->lr},
        {"seed", t->seed}, {"ranks", r->world}, {"threads", tr_threads(tr_cpu(0))});
    cJSON_AddStringToObject(object, "device", t->device);
    cJSON_AddStringToObject(object, "backend", t->backend);
    cJSON_AddStringToObject(object, "data", t->data);
    cJSON_AddStringToObject(object, "out", t->out);
    cJSON_AddStringToObject(object, "version", tr_version());
}

static int write_json(const run *r)
{
    cJSON *object = tr__result_new(NULL, "train/%s/%d", r->train->model, r->world);
    add_results(object, r);
    add_setup(object, r);
    return tr__write_json(r->train->command, object, r->train->json);
}

/* Columns of the metrics, for a chart. False without memory. */
static bool print_chart(const tr_metrics_row *rows, int64_t count)
{
    double *columns = malloc((size_t)(3 * count + 1) * sizeof *columns);
    enum { bytes = 1 << 17 };
    char *text = malloc(bytes);
    if (columns && text && count < INT_MAX) {
        double *x = columns, *loss = x + count, *validation = loss + count;
        for (int64_t i = 0; i < count; i++) {
            x[i] = (double)rows[i].step;
            loss[i] = rows[i].loss;
            validation[i] = rows[i].validation_loss;
        }
        const tr_series series[] = {{"loss", x, loss, (int)count}, {"validation loss", x, validation, (int)count}};
        int width = tr__terminal_width(STDOUT_FILENO);
        tr_chart_text(series, 2, width < 100 ? width : 100, 18, !tr__terminal_utf8(), text, bytes);
        fputs(text, stdout);
    }
    free(columns);
    free(text);
    return columns && text;
}

static void conclude(const run *r)
{
    const tr_fit_report *f = &r->report;
    const tr__train *t = r->train;
    int64_t count = 0, step = tr_trainer_steps(r->trainer);
    const tr_metrics_row *rows = f->metrics ? tr_metrics_rows(f->metrics, &count) : NULL;
    if (isnan(f->step_ms_median)) {
        printf("%s is at step %" PRId64 "%s", t->out, step,
            f->stopped ? ": stopped before another one" : " already: nothing was left to do");
        if (!isnan(f->validation_loss)) printf("; validation loss %.4f", f->validation_loss);
        putchar('\n');
        return;
    }
    if (count > 1) print_chart(rows, count);
    printf("step %" PRId64 ": loss %.4f -> %.4f", step, f->initial_loss, f->final_loss);
    if (!isnan(f->validation_loss)) printf(", validation loss %.4f", f->validation_loss);
    if (!isnan(f->validation_accuracy)) printf(", %.2f %% right", 100 * f->validation_accuracy);
    printf("; %.*f %ss/s, %.1f s\n", f->items_per_s < 10 ? 2 : 0, f->items_per_s, t->kind->item, f->seconds);
    if (f->skipped)
        printf("Bad samples skipped: %" PRId64 "; the warnings above name their files\n", f->skipped);
    if (f->rolled_back)
        printf("Replicas differed, and went back to a checkpoint: %" PRId64 " times; the warnings above say where\n",
            f->rolled_back);
    printf("Saved in %s/checkpoint-%" PRId64 "\n", t->out, step);
    char word[PATH_MAX];
    if (step < t->steps)
        printf("Go on with: trireme %s --resume --out %s\n", t->command, tr__shell_word(t->out, word, sizeof word));
    else if (t->kind->advise)
        t->kind->advise(t);
}

/* Whoever can best say what went wrong says it, and nobody else. */
static int report_failure(const run *r, tr_status status)
{
    bool told_elsewhere = status == TR_PEER || (r->rank > 0 && r->report.common_failure);
    if (told_elsewhere && r->train->has_parent) return TR_EXIT_PEER;
    tr__complain(r->train->command, "%s", tr_error_message());
    return status == TR_PEER ? TR_EXIT_PEER : TR__EXIT_FAILED;
}

/* A launcher of ours tells by itself for whom ranks wait. */
static tr_group *join(const tr__train *t)
{
    tr_join_options options = {.size = sizeof options, .timeout_ms = t->timeout * 1000, .backend = t->backend};
    if (getenv("TRIREME_LAUNCH")) options.report_ms = INT_MAX;
    return t->under_launcher ? tr_join_with(&options) : NULL;
}

static int train(run *r)
{
    tr__train *t = r->train;
    tr__print_warnings(t->command);
    tr_group *group = join(t);
    tr_status status = tr_status_of(group);
    if (group && status == TR_OK) {
        r->rank = tr_rank(group);
        r->world = tr_world_size(group);
    }
    if (status == TR_OK && t->threads) status = tr_set_threads(t->threads);
    if (status == TR_OK) status = fit(r, group);
    if (status != TR_OK) return report_failure(r, status);

    int code = TR__EXIT_OK;
    if (r->rank == 0) {
        conclude(r);
        if (t->json) code = write_json(r);
    }
    if (group && tr_leave(group) != TR_OK) return report_failure(r, TR_PEER);
    if (r->report.stopped && stop_signal) return 128 + stop_signal;
    return code;
}

int tr__train_rank(tr__train *t)
{
    TR_SCOPE;
    int code = train(&(run){.train = t, .world = 1});
    if (!stop_signal) return code;
    fflush(NULL);
    _exit(code); /* the end of the scope would wait for a worker of the loader that hangs */
}
