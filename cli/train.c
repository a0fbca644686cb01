/* trireme train: which models and options there are, and what they are when they are not given. */
#include "train.h"

#include "clock.h"
#include "command.h"
#include "relaunch.h"
#include "system.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

const tr__setting *tr__train_setting(const tr__train *t, int i)
{
    static const tr__setting shared[] = {
        {"data", false}, /* it may have moved: its content is compared */
        {"init", true},
        {"batch", true},
        {"micro-batch", false},
        {"steps", false},
        {"warmup", true},
        {"lr", true},
        {"min-lr", true},
        {"optimizer", true},
        {"momentum", true},
        {"weight-decay", true},
        {"dtype", true},
        {"bf16-state", true},
        {"clip", true},
        {"seed", true},
        {"eval-every", false},
        {"save-every", false},
        {"keep", false},
        {"keep-best", false},
    };
    const int n = (int)(sizeof shared / sizeof *shared);
    const tr__setting *setting = i < n ? &shared[i] : &t->kind->settings[i - n];
    return setting->name ? setting : NULL;
}

/* With as few digits as give the same number back. */
static bool put_number(double value, char *text, size_t bytes)
{
    int digits = 6;
    do snprintf(text, bytes, "%.*g", digits, value);
    while (strtod(text, NULL) != value && ++digits <= 17);
    return true;
}

bool tr__train_value(const tr__option *o, char *text, size_t bytes)
{
    const char *value = o->type == TR__OPTION_TEXT ? *(const char **)o->into : NULL;
    if (o->type == TR__OPTION_INTEGER) return snprintf(text, bytes, "%d", *(int *)o->into) > 0;
    if (o->type == TR__OPTION_NUMBER) return put_number(*(double *)o->into, text, bytes);
    if (o->type == TR__OPTION_FLAG) value = *(bool *)o->into ? "yes" : NULL;
    return value && snprintf(text, bytes, "%s", value) < (int)bytes;
}

bool tr__train_given(const tr__train *t, const char *name)
{
    const tr__option *o = tr__option_named(t->options, name);
    return o && (t->given >> (o - t->options) & 1);
}

const char *tr__train_own(tr__train *t, char *text)
{
    if (!text || t->n_owned == (int)(sizeof t->owned / sizeof *t->owned)) {
        free(text);
        return NULL;
    }
    return t->owned[t->n_owned++] = text;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), n = strlen(end);
    return length >= n && !strcmp(text + length - n, end);
}

/* Of an archive no more is unpacked than a model can want: its weights in f64, as much again that it does not take, and
 * masks. */
static tr_tensor_list *read_weights(const char *path, tr_module *model)
{
    if (!ends_with(path, ".npz")) return tr_safetensors_load(path);
    const tr_tensor_list *state = tr_state_dict(model);
    int64_t bytes = 0;
    for (int i = 0; i < tr_list_count(state); i++) {
        tr_tensor *t = tr_list_at(state, i);
        bytes += tr_numel(t) * (int64_t)tr_dtype_size(tr_dtype_of(t));
    }
    return tr_npz_load(path, .max_bytes = 4 * bytes + (64 << 20));
}

/* A file's tensors, of the table only its first rows. */
static tr_status take_weights(const tr_tensor_list *file, const tr__train_weights *w, tr_tensor_list *out)
{
    tr_status status = tr_status_of(file);
    for (int i = 0; status == TR_OK && i < tr_list_count(file); i++) {
        tr_tensor *t = tr_list_at(file, i);
        if (w->table && ends_with(tr_list_name(file, i), w->table) && tr_size(t, 0) > w->rows)
            t = tr_slice(t, 0, 0, w->rows);
        status = tr_list_add(out, tr_list_name(file, i), t);
    }
    return status;
}

tr_status tr__train_begin_with(tr__train *t, tr_module *model, const tr__train_weights *w)
{
    TR_SCOPE;
    if (!t->init) return TR_OK;
    tr_tensor_list *state = tr_list_new();
    tr_load_report report;
    tr_status status = take_weights(read_weights(t->init, model), w, state);
    if (status == TR_OK)
        status = tr_load_state_dict(model, state, .rename = w->rename, .partial = w->partial, .report = &report);
    /* Not the file's: what the model does not take, a mask say, may be infinite. */
    if (status == TR_OK && (status = tr_check_finite(tr_state_dict(model))) != TR_OK)
        return tr_fail(status, "--init %s: %s: give weights of a training that has not diverged", t->init, tr_error_message());
    if (status == TR_OK) snprintf(t->begun_with, sizeof t->begun_with, "%.*s: %s", 128, t->init, report.text);
    return status;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static void put_options(tr__train *t)
{
    const double any = 1e9;
    const int many = INT_MAX;
    static const char *const backends[] = {"native", "nccl", "mpi", NULL};
    const tr__option data = {"data", 0, "PATH", t->kind->data_help, TR__TEXT(&t->data)};
    const tr__option shared[] = {
        {"init", 0, "FILE", "weights to start from: safetensors or .npz, with Hugging Face's or torchvision's names",
         TR__TEXT(&t->init)},
        {"min-lr", 0, "X", "learning rate at the end of the cosine", TR__NUMBER(&t->min_lr, 0, 1000)},
        {"optimizer", 0, "NAME", "instead of the model's usual one", TR__TEXT(&t->optimizer), .choices = tr__train_optimizers},
        {"momentum", 0, "X", "SGD's, RMSprop's or LARS's (0.9; RMSprop: 0)", TR__NUMBER(&t->momentum, 0, 0.9999)},
        {"weight-decay", 0, "X", "the optimizer's; of another than the usual one its own", TR__NUMBER(&t->weight_decay, 0, 1000)},
        {"dtype", 0, "NAME", "of products and activations; bf16: under autocast, the weights f32", TR__TEXT(&t->dtype),
         .choices = tr__train_dtypes},
        {"bf16-state", 0, NULL, "the optimizer's state in bf16, rounded stochastically: half its memory (sgd, adam, adamw, lion)",
         TR__FLAG(&t->bf16_state)},
        {"recompute", 0, NULL, "compute the activations inside blocks again in backward, rather than keep them",
         TR__FLAG(&t->recompute)},
        {"step-in-backward", 0, NULL, "fail unless each parameter can be updated as its gradient is final",
         TR__FLAG(&t->step_in_backward)},
        {"clip", 0, "X", "the most that the gradients' norm may be; 0: any", TR__NUMBER(&t->clip, 0, any)},
        {"seed", 0, "N", "for all that is random", TR__INTEGER(&t->seed, 0, many)},
        {"ranks", 'n', "N", "processes that share the work", TR__INTEGER(&t->ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"max-restarts", 0, "N", "how often all ranks start again after one failed, from the newest checkpoint",
         TR__INTEGER(&t->max_restarts, 0, INT_MAX)},
        {"min-ranks", 0, "N", "with --max-restarts: start one rank fewer each time, while N are left",
         TR__INTEGER(&t->min_ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"device", 0, "NAME", "where each rank computes: cpu, cuda (the ranks of a host take theirs in turn) or cuda:1",
         TR__TEXT(&t->device)},
        {"backend", 0, "NAME", "what carries the ranks' collectives (nccl: each rank on a GPU of its own)",
         TR__TEXT(&t->backend), .choices = backends},
        {"threads", 0, "N", "threads of each rank (its share of the cores)", TR__INTEGER(&t->threads, 1, 1024)},
        {"timeout", 0, "SECONDS", "how long a rank waits for others, in a collective or to join (600)",
         TR__INTEGER(&t->timeout, 1, INT_MAX / 1000)},
        {"allow-different", 0, "NAMES", "what ranks may be told differently, otherwise refused: \"lr,data\"; train.h lists them",
         TR__TEXT(&t->allow_different)},
        {"eval-every", 0, "N", "steps between validations", TR__INTEGER(&t->eval_every, 1, many)},
        {"save-every", 0, "N", "steps between checkpoints", TR__INTEGER(&t->save_every, 1, many)},
        {"keep", 0, "N", "how many of the newest checkpoints stay", TR__INTEGER(&t->keep, 1, 1000)},
        {"keep-best", 0, NULL, "the one with the least validation loss stays, too", TR__FLAG(&t->keep_best)},
        {"check-replicas", 0, "N", "steps between comparisons of the ranks' weights and optimizer states; 0: never",
         TR__INTEGER(&t->check_replicas, 0, many)},
        {"roll-back", 0, NULL, "where they differ, go back to the newest checkpoint, and on from there",
         TR__FLAG(&t->roll_back)},
        {"stop-on-spike", 0, NULL, "end when the gradients' norm is 1,000 times its median, instead of a warning",
         TR__FLAG(&t->stop_on_spike)},
        {"stop-at", 0, "N", "stop after this step; go on with --resume", TR__INTEGER(&t->stop_at, 1, many)},
        {"out", 'o', "FOLDER", "where metrics, chart and checkpoints go (a new folder here)", TR__TEXT(&t->out)},
        {"resume", 0, NULL, "go on from the newest checkpoint in --out, with its options", TR__FLAG(&t->resume)},
        {"json", 0, "FILE", "write the results as a JSON object", TR__TEXT(&t->json)},
        {"profile", 0, "N", "write a Chrome trace of N steps, and what memory they take, into --out",
         TR__INTEGER(&t->profile, 1, 1000)},
        {"plain", 0, NULL, "lines instead of a progress bar", TR__FLAG(&t->plain)},
        {0},
    };
    t->options[0] = data;
    int n = 1 + t->kind->options(t, t->options + 1);
    memcpy(t->options + n, shared, sizeof shared);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

/* When this process was made, or the `trireme train` that made it. The kernel counts in ticks since boot. */
static int64_t start_of_process(void)
{
    const char *parent = getenv(TR__TRAIN_PARENT);
    if (parent && *parent) return strtoll(parent, NULL, 10);
    char line[1024];
    const char *after = tr__first_line("/proc/self/stat", line, sizeof line) ? strrchr(line, ')') : NULL;
    for (int field = 2; after && field < 22; field++) after = strchr(after + 1, ' ');
    int64_t now = tr__clock_ns(CLOCK_MONOTONIC);
    if (!after) return now;
    int64_t age = tr__clock_ns(CLOCK_BOOTTIME) - strtoll(after, NULL, 10) * (1000000000 / sysconf(_SC_CLK_TCK));
    return age > 0 ? now - age : now;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* Ranks that a launcher has started again go on from what they have saved; what is older is another training's. */
static bool goes_on(const tr__train *t)
{
    const char *count = t->under_launcher ? getenv("TORCHELASTIC_RESTART_COUNT") : NULL, *began = getenv("TRIREME_BEGAN");
    char path[PATH_MAX];
    int64_t step;
    struct stat s;
    return count && began && atoi(count) > 0 && t->out && tr_checkpoint_find(t->out, path, &step) == TR_OK && stat(path, &s) == 0 &&
        s.st_mtim.tv_sec * INT64_C(1000000000) + s.st_mtim.tv_nsec > strtoll(began, NULL, 10);
}

static int train(tr__train *t)
{
    TR_SCOPE;
    if (!t->resume) t->resume = goes_on(t);
    if (t->resume && !t->out)
        return TR__MISUSE(t->command, "--resume goes on in the folder of a training: --out FOLDER is missing");
    int status = t->resume && !t->has_parent ? tr__train_restore(t) : -1;
    if (status < 0 && !t->data) status = TR__MISUSE(t->command, "%s", t->kind->data_missing);
    if (status < 0) status = t->kind->fill_in(t);
    if (status < 0 && !t->has_parent) status = tr__train_check(t);
    bool launches = (t->ranks > 1 || t->max_restarts > 0) && !t->under_launcher;
    if (status < 0) status = launches ? tr__train_launch(t) : tr__train_rank(t);
    if (status != TR__EXIT_OK) tr__train_clear_away(t);
    return status;
}

static int train_model(tr__train *t, int argc, char **argv)
{
    t->started_ns = start_of_process();
    t->under_launcher = tr__is_rank(&t->rank, &t->world, &t->local_ranks);
    t->has_parent = t->under_launcher && getenv(TR__TRAIN_PARENT);
    const char *content = t->has_parent ? getenv(TR__TRAIN_CONTENT) : NULL;
    if (content) snprintf(t->content, sizeof t->content, "%s", content);
    put_options(t);
    char about[512];
    snprintf(about, sizeof about, "%s\nCtrl-C saves and stops, a second one stops at once. docs/training.md says more.",
             t->kind->about);
    const tr__syntax syntax = {t->command, NULL, about, t->options, .operands = {0, 0}, .given = &t->given};
    int status = tr__parse(&syntax, &argc, argv);
    if (status < 0) status = train(t);
    for (int i = 0; i < t->n_owned; i++) free(t->owned[i]);
    return status;
}

int tr__cli_train(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : NULL;
    if (model && (!strcmp(model, "--help") || !strcmp(model, "-h"))) {
        printf("Usage: trireme train MODEL [OPTION…]\n\nTrains a model. `trireme train MODEL --help` lists the "
               "options.\n\n"
               "Models:\n"
               "  gpt                                      a language model, on the bytes or tokens of a text\n"
               "  bert                                     the same, masked\n"
               "  lenet, resnet18, resnet34, resnet50, resnet101, vgg11, vgg13, vgg16, vgg19,\n"
               "  vit_nano, vit_b_16, vit_b_32, vit_l_16, vit_l_32, vit_h_14\n"
               "                                           a classifier, on MNIST, CIFAR-10 or a folder of images\n");
        return TR__EXIT_OK;
    }
    tr__train t = {.seed = 1, .ranks = 1, .dtype = "f32", .device = "cpu", .backend = "native", .keep = 2, .check_replicas = 100};
    if (model && (tr__train_text_begin(&t, model) || tr__train_images_begin(&t, model))) {
        t.model = model;
        snprintf(t.command, sizeof t.command, "train %.20s", model);
        return train_model(&t, argc - 1, argv + 1);
    }
    if (!model)
        tr__complain("train", "a model is missing, such as: trireme train gpt");
    else
        tr__complain("train", "no model is named \"%s\": there are gpt, bert, lenet, resnet18 to resnet101, "
            "vgg11 to vgg19 and vit_nano to vit_h_14", model);
    fprintf(stderr, "Try: trireme train --help\n");
    return TR__EXIT_USAGE;
}
