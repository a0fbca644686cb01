/*
 * The training that the simulator disturbs: a GPT of one layer on a short text, on four ranks, with a validation and a
 * checkpoint every few steps. It goes on from what there is in the folder. Under `trireme run`:
 *
 *   job FOLDER TEXT
 */
#include "inject.h"

#include "hosts.h"

#include <trireme/tools.h>

#include <stdio.h>
#include <stdlib.h>

/* SOON_MS: where bytes get lost, ranks wait for the rest of a message until the timeout. */
enum { CONTEXT = 8, BATCH = 4, TIMEOUT_MS = 60000, SOON_MS = 5000 };

static tr_group *join(void)
{
    const fault_page *p = injected();
    int rank = injected_rank(), timeout_ms = p && is_on_wire(p->fault.kind) ? SOON_MS : TIMEOUT_MS;
    if (!p || p->transport[0]) return tr_join(.timeout_ms = timeout_ms, .transport = p ? p->transport : NULL);
    tr_store *store = tr_store_tcp(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), .token = getenv("TRIREME_TOKEN"),
                                   .timeout_ms = timeout_ms);
    if (tr_status_of(store) != TR_OK) return tr_join(.store = store, .rank = rank, .world_size = RANKS);
    return tr_join(.store = store_on_host(store, p->hosts[rank]), .rank = rank, .world_size = RANKS,
                   .timeout_ms = timeout_ms);
}

static void reach(int moment)
{
    if (injected()) atomic_store(&injected()->moments[injected_rank()], moment);
}

/* Asked before every step. */
static bool should_stop(void *user)
{
    int *step = user;
    reach(MOMENT_STEP + (*step)++);
    return false;
}

static void on_save(int64_t step, void *user)
{
    (void)user;
    if (injected()) atomic_store(&injected()->saved, (int)step);
}

static tr_status train(const char *folder, const char *text)
{
    tr_group *world = join();
    if (tr_status_of(world) != TR_OK) return tr_status_of(world);
    reach(MOMENT_JOINED);
    char path[PATH_MAX];
    int64_t newest;
    bool resumes = tr_checkpoint_find(folder, path, &newest) != TR_NOT_FOUND;
    tr_module *gpt = tr_gpt(.context = CONTEXT, .layers = 1, .heads = 2, .dim = 8, .dropout = 0.1, .seed = 1);
    tr_trainer *t = tr_trainer_new(gpt, tr_text_load(text), .group = world, .context = CONTEXT, .global_batch = BATCH,
                               .steps = STEPS, .warmup_steps = 2, .lr = 0.01, .seed = 2, .validation_windows = 8,
                               .resume = resumes ? folder : NULL);
    tr_status status = tr_status_of(t);
    if (status != TR_OK) return status;
    if (injected() && tr_rank(world) == 0) atomic_store(&injected()->resumed, (int)tr_trainer_steps(t));
    int step = 0;
    status = tr_fit(t, .folder = folder, .validate_every = VALIDATE_EVERY, .save_every = SAVE_EVERY,
                    .should_stop = should_stop, .on_save = on_save, .user = &step, .draw = tr_chart_loss);
    return status == TR_OK ? tr_leave(world) : status;
}

static void print(tr_log_level level, const char *message, void *user)
{
    (void)level, (void)user;
    fprintf(stderr, "%s\n", message);
}

int main(int argc, char **argv)
{
    TR_SCOPE;
    if (argc != 3) return fprintf(stderr, "usage: %s FOLDER TEXT\n", argv[0]), 2;
    tr_set_log(print, NULL, TR_LOG_WARN);
    tr_status status = tr_set_threads(1);
    if (status == TR_OK) status = train(argv[1], argv[2]);
    if (status == TR_OK) return 0;
    fprintf(stderr, "%s\n", tr_error_message());
    return status == TR_PEER ? TR_EXIT_PEER : 1;
}
