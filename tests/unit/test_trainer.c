/* Training with threads as ranks: any split of the batch gives the same losses, resuming gives the same numbers, all
 * ranks stop together, and one that fails takes the others along instead of leaving them waiting. */
#include <trireme/tools.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 3, STEPS = 12 };

static char folder[64], text_path[96];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-trainer-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(text_path, sizeof text_path, "%s/text", folder);
    FILE *f = fopen(text_path, "w");
    for (int i = 0; f && i < 600; i++) fprintf(f, "%d times %d is %d;\n", i, i % 7, i * (i % 7));
    return f ? fclose(f) : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* What a rank is to do, and what came of it. */
typedef struct rank {
    tr_store *store; /* NULL: alone */
    int rank, world_size;
    tr_trainer_options options;
    const char *folder;
    int64_t stop_at;
    int stop_after; /* this rank wants to stop after so many steps; 0: never */
    int asked;
    const char *command; /* what a shell does after the step command_at of rank 0; NULL: nothing */
    int64_t command_at;
    int command_failed;
    enum { NOTHING, DATA, LOSS, VALIDATION, OPTIONS } fails; /* on rank 1 */
    int losses; /* so many were computed */
    bool again; /* one more step when it has failed, without a row on rank 1 */
    tr_group *group;
    tr_status status;
    char message[512];
    double loss[STEPS + 1], validation[STEPS + 1], norm[STEPS + 1]; /* by step */
    tr_fit_report report;
    int64_t steps;
} rank;

static bool should_stop(void *user)
{
    rank *r = user;
    return r->stop_after && ++r->asked >= r->stop_after;
}

static void on_step(const tr_metrics_row *row, void *user)
{
    rank *r = user;
    if (r->command && r->rank == 0 && row->step == r->command_at) r->command_failed = system(r->command);
    r->loss[row->step] = row->loss;
    r->validation[row->step] = row->validation_loss;
    r->norm[row->step] = row->grad_norm;
}

static tr_tensor *loss_of(tr_module *net, tr_tensor *x, tr_tensor *y, void *user)
{
    rank *r = user;
    bool validates = !tr_module_training(net);
    if (r->rank == 1 && ((r->fails == LOSS && ++r->losses == 3) || (r->fails == VALIDATION && validates)))
        return tr_tensor_fail(TR_IO, "the disk is full");
    return tr_cross_entropy(tr_forward(net, x), y);
}

/* Makes a call that all ranks make, as tr_shard_optimizer() is. */
static tr_optimizer *meet(tr_tensor_list *parameters, void *user)
{
    double one = 1;
    return tr_all_reduce(((rank *)user)->group, &one, 1, .dtype = TR_F64) == TR_OK ? tr_adamw(parameters) : NULL;
}

static tr_status train(rank *r)
{
    tr_group *group = NULL;
    if (r->store) r->group = group = tr_join(.store = r->store, .rank = r->rank, .world_size = r->world_size);
    tr_trainer_options o = r->options;
    o.size = sizeof o;
    /* DDP makes rank 0's weights everybody's, so the others may start with their own. */
    o.model = tr_gpt(.vocab = 256, .context = 8, .layers = 1, .heads = 2, .dim = 8, .dropout = 0.1,
        .seed = (uint64_t)r->rank + 1);
    o.text = tr_text_load(r->fails == DATA && r->rank == 1 ? "/nowhere" : text_path);
    if (r->fails) {
        o.loss = loss_of;
        o.user = r;
    }
    if (r->fails == DATA) o.optimizer = meet;
    o.group = group;
    o.context = 8;
    o.global_batch = o.global_batch ? o.global_batch : 6;
    o.steps = o.steps ? o.steps : STEPS;
    tr_trainer *trainer = tr_trainer_new_with(&o);
    tr_status status = tr_status_of(trainer);
    if (status == TR_OK)
        status = tr_fit(trainer, .folder = r->folder, .stop_at = r->fails == OPTIONS && r->rank == 1 ? -1 : r->stop_at,
            .validate_every = 5, .save_every = 4, .should_stop = should_stop, .on_step = on_step, .user = r,
            .report = &r->report, .draw = tr_chart_loss);
    if (r->again) status = tr_trainer_step(trainer, r->rank == 1 ? NULL : &(tr_metrics_row){0}, &(bool){false});
    r->steps = status == TR_OK ? tr_trainer_steps(trainer) : -1;
    r->report.metrics = NULL; /* it goes with this scope */
    if (status == TR_OK && group) status = tr_leave(group);
    return status;
}

static void *run(void *argument)
{
    TR_SCOPE;
    rank *r = argument;
    r->status = train(r);
    if (r->status != TR_OK) strncpy(r->message, tr_error_message(), sizeof r->message - 1);
    return NULL;
}

/* Runs ranks like `like` as threads; their results come in ranks. */
static void run_ranks(rank like, int world_size, rank ranks[MOST_RANKS])
{
    TR_SCOPE;
    pthread_t threads[MOST_RANKS];
    like.world_size = world_size;
    like.store = world_size > 1 ? tr_store_memory() : NULL;
    for (int i = 0; i < world_size; i++) {
        int stop_after = ranks[i].stop_after;
        ranks[i] = like;
        ranks[i].rank = i;
        ranks[i].stop_after = stop_after;
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < world_size; i++) pthread_join(threads[i], NULL);
}

static void assert_well(const rank *r)
{
    if (r->status != TR_OK) fail_msg("rank %d: %s", r->rank, r->message);
}

static rank train_alone(rank like)
{
    rank one[MOST_RANKS] = {0};
    run_ranks(like, 1, one);
    assert_well(one);
    return one[0];
}

static void any_split_learns_the_same(void **state)
{
    (void)state;
    rank alone = train_alone((rank){0});
    assert_true(alone.report.final_loss < alone.report.initial_loss);
    assert_true(fabs(alone.report.initial_loss - log(256)) < 0.1);
    assert_true(isnan(alone.validation[4]) && !isnan(alone.validation[5]) && !isnan(alone.validation[STEPS]));
    assert_true(alone.norm[1] > 0);
    for (int split = 1; split < 8; split++) {
        int world_size = split % 3 + 1;
        rank ranks[MOST_RANKS] = {0};
        run_ranks((rank){.options.micro_batch = split / 3 + 1}, world_size, ranks);
        for (int i = 0; i < world_size; i++) {
            assert_well(&ranks[i]);
            for (int s = 1; s <= STEPS; s++) {
                assert_true(fabs(ranks[i].loss[s] - alone.loss[s]) < 1e-5);
                assert_true(fabs(ranks[i].norm[s] - alone.norm[s]) < 1e-4);
                assert_true(isnan(alone.validation[s]) || fabs(ranks[i].validation[s] - alone.validation[s]) < 1e-5);
            }
        }
    }
}

/* 7 windows over 3 ranks: 2, 2 and 3. */
static void an_uneven_share_is_weighed(void **state)
{
    (void)state;
    rank like = {.options.global_batch = 7}, ranks[MOST_RANKS] = {0}, alone = train_alone(like);
    run_ranks(like, 3, ranks);
    assert_well(ranks);
    for (int s = 1; s <= STEPS; s++) assert_true(fabs(ranks[0].loss[s] - alone.loss[s]) < 1e-5);
}

static void a_resumed_run_is_as_an_unbroken_one(void **state)
{
    (void)state;
    for (int world_size = 1; world_size <= 2; world_size++) {
        char whole_path[96], broken_path[96];
        snprintf(whole_path, sizeof whole_path, "%s/whole%d", folder, world_size);
        snprintf(broken_path, sizeof broken_path, "%s/broken%d", folder, world_size);
        rank whole[MOST_RANKS] = {0}, first[MOST_RANKS] = {0}, second[MOST_RANKS] = {0};
        run_ranks((rank){.folder = whole_path}, world_size, whole);
        run_ranks((rank){.folder = broken_path, .stop_at = 7}, world_size, first);
        run_ranks((rank){.folder = broken_path, .options.resume = broken_path}, world_size, second);
        assert_well(whole);
        assert_well(first);
        assert_well(second);
        assert_int_equal(first[0].steps, 7);
        for (int s = 1; s <= STEPS; s++) {
            const rank *part = s <= 7 ? first : second;
            assert_true(part->loss[s] == whole->loss[s] && part->norm[s] == whole->norm[s]);
            assert_true(isnan(whole->validation[s]) || part->validation[s] == whole->validation[s]);
        }
        assert_true(second->report.initial_loss == whole->report.initial_loss);
    }
}

/* ---- What is in the folder ------------------------------------------------------------------------------------------- */

static void shell(const char *format, ...) TR_PRINTF(1, 2);
static void shell(const char *format, ...)
{
    char command[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (system(command) != 0) fail_msg("%s", command);
}

/* Whatever becomes of metrics.csv, a resumed training has the rows of its checkpoint and writes the file from them. */
static void the_history_is_the_checkpoints(void **state)
{
    (void)state;
    static const char *const damages[] = {"true", "tr 4 6 <$f >$f.new && mv $f.new $f", "head -c 300 $f >$f.new && mv $f.new $f",
        "sed -i 1d $f", "sed -i 3d $f", "rm $f", ": >$f", "echo 8,1,1,1,1,1,1,1 >>$f"};
    char whole[96], broken[96];
    snprintf(whole, sizeof whole, "%s/whole", folder);
    train_alone((rank){.folder = whole});
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        snprintf(broken, sizeof broken, "%s/broken%zu", folder, i);
        train_alone((rank){.folder = broken, .stop_at = 7});
        shell("f=%s/metrics.csv && { %s; }", broken, damages[i]);
        train_alone((rank){.folder = broken, .options.resume = broken});
        shell("for d in %s %s; do cut -d , -f 1-5,7 $d/metrics.csv >$d/results || exit 1; done && cmp %s/results %s/results", whole,
            broken, whole, broken);
    }
}

/* Each rank has a share of it, which is too large, too. */
static void the_largest_batch_is_too_large(void **state)
{
    (void)state;
    rank ranks[MOST_RANKS] = {0};
    run_ranks((rank){.options.global_batch = INT64_MAX}, 3, ranks);
    for (int i = 0; i < 3; i++)
        if (!strstr(ranks[i].message, "batch * context below 2^60: not 307445734561825860")) fail_msg("'%s'", ranks[i].message);
}

/* A training that has nothing left to do clears away, too, what a kill left. */
static void leftovers_of_a_kill_go_with_the_next_run(void **state)
{
    (void)state;
    train_alone((rank){.folder = folder});
    shell("cd %s && mkdir .checkpoint.tmp .checkpoint.old && touch .checkpoint.tmp/x .loss.svg.0123456789abcdef.tmp "
          "&& echo stale >loss.svg", folder);
    train_alone((rank){.folder = folder, .options.resume = folder});
    shell("cd %s && test ! -e .checkpoint.tmp && test ! -e .checkpoint.old && ! ls -A | grep -q tmp && ! grep -q stale loss.svg",
          folder);
}

/* What a run goes on from elsewhere, its own folder holds at its end too, also where no step was left to do. */
static void a_run_that_goes_on_from_elsewhere_is_saved(void **state)
{
    (void)state;
    char from[96], to[96];
    snprintf(from, sizeof from, "%s/from", folder);
    snprintf(to, sizeof to, "%s/to", folder);
    train_alone((rank){.folder = from, .stop_at = 4});
    assert_int_equal(train_alone((rank){.folder = to, .options.resume = from, .stop_at = 4}).steps, 4);
    shell("cmp %s/checkpoint-4/model.safetensors %s/checkpoint-4/model.safetensors", from, to);
    shell("touch -d 2001-01-01 %s/checkpoint-4", to); /* what the folder holds already is not saved again */
    train_alone((rank){.folder = to, .options.resume = to, .stop_at = 4});
    shell("test \"$(date -r %s/checkpoint-4 +%%Y)\" = 2001", to);
}

/* Makes a checkpoint one from before there were manifests: files that do not say which save they are of. */
static void forget_manifest(int64_t step)
{
    shell("cd %s/checkpoint-%d && rm manifest.json && LC_ALL=C sed -i 's/\"trireme.save\"/\"trireme.none\"/' *.safetensors", folder,
        (int)step);
}

/* Checkpoints from before there was a history have their rows in metrics.csv alone. */
static void a_checkpoint_without_a_history_goes_on(void **state)
{
    (void)state;
    train_alone((rank){.folder = folder, .stop_at = 7});
    forget_manifest(7);
    shell("cd %s && rm checkpoint-*/history.safetensors && sed -i 's/\"validated_step\":\"5\"/\"validated_stop\":\"5\"/' "
          "checkpoint-7/state.safetensors && cp metrics.csv before && cp -r checkpoint-7 kept", folder);
    for (int round = 0; round < 2; round++) { /* the first is killed before it saves, as it were */
        train_alone((rank){.folder = folder, .options.resume = folder});
        shell("cd %s && cmp metrics-to-7.csv before && test \"$(cut -d , -f 1 metrics.csv | tr '\\n' ' ')\" = "
              "\"step 8 9 10 11 12 \" && rm -r checkpoint-* && cp -r kept checkpoint-7", folder);
    }
}

static void assert_resume_fails(const char *message)
{
    rank one[MOST_RANKS] = {0};
    run_ranks((rank){.folder = folder, .options.resume = folder}, 1, one);
    assert_int_equal(one->status, TR_FORMAT);
    if (!strstr(one->message, message)) fail_msg("%s: %s", message, one->message);
}

/* Each number that a checkpoint says is one that can be. */
static void wrong_numbers_of_a_checkpoint_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *message;
    } wrong[] = {
        {"seconds", "inf", "seconds = inf, which is not from 0 to 1e+09"}, {"seconds", "-1", "seconds = -1"},
        {"seconds", "1e300", "seconds = 1e300"}, {"seconds", "nan", "seconds = nan"}, {"seconds", "soon", "no number \"seconds\""},
        {"seconds", "", "no number \"seconds\""}, {"step", "inf", "step = inf"}, {"step", "-1", "step = -1"},
        {"step", "nan", "step = nan"}, {"step", "1e18", "step = 1e18"}, {"step", "3.5", "step = 3.5, which is no whole number"},
        {"step", "3", "history goes to step 4, but its state is of step 3"}, {"validated_step", "9", "validated_step = 9"},
        {"validation_accuracy", "2", "validation_accuracy = 2"}, {"best_validation_loss", "x", "no number"},
    };
    train_alone((rank){.folder = folder, .stop_at = 4});
    forget_manifest(4);
    char path[128];
    snprintf(path, sizeof path, "%s/checkpoint-4/state.safetensors", folder);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        TR_SCOPE;
        tr_tensor_list *list = tr_safetensors_load(path);
        char *before = strdup(tr_list_metadata(list, wrong[i].key));
        TR_CHECK(tr_list_set_metadata(list, wrong[i].key, wrong[i].value));
        TR_CHECK(tr_safetensors_save(path, list));
        assert_resume_fails(wrong[i].message);
        TR_CHECK(tr_list_set_metadata(list, wrong[i].key, before));
        TR_CHECK(tr_safetensors_save(path, list));
        free(before);
    }
    train_alone((rank){.folder = folder, .options.resume = folder});
}

/* A folder that goes or becomes another one ends the training: its lock is on what was opened. */
static void a_folder_that_goes_is_an_error(void **state)
{
    (void)state;
    static const struct {
        const char *command, *message;
    } cases[] = {
        {"rm -r %s/run", "run was removed while this training wrote into it"},
        {"mv %s/run %s/moved", "/moved: go on with it there"},
        {"mv %s/run %s/moved && mkdir %s/run", "/moved: go on with it there"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int world_size = 1; world_size <= 2; world_size++) {
            for (int at = 3; at <= 4; at++) { /* and where it saves */
                char run[96], command[512];
                snprintf(run, sizeof run, "%s/run", folder);
                snprintf(command, sizeof command, cases[c].command, folder, folder, folder);
                rank ranks[MOST_RANKS] = {0};
                run_ranks((rank){.folder = run, .command = command, .command_at = at}, world_size, ranks);
                assert_int_equal(ranks[0].command_failed, 0);
                assert_int_equal(ranks[0].status, TR_STATE);
                if (!strstr(ranks[0].message, cases[c].message)) fail_msg("%s", ranks[0].message);
                if (world_size > 1) assert_int_equal(ranks[1].status, TR_PEER);
                shell("cd %s && { [ ! -e run ] || rmdir run; } && { [ ! -e moved ] || { tail -n 1 moved/metrics.csv | grep -q ^%d,; }; } && "
                      "rm -rf moved", folder, at);
            }
        }
    }
}

/* A second training, or an older checkpoint, must not cost what has come further. */
static void what_has_come_further_is_not_thrown_away(void **state)
{
    (void)state;
    char older[96], command[512];
    snprintf(older, sizeof older, "%s/checkpoint-4", folder);
    train_alone((rank){.folder = folder, .stop_at = 8});
    snprintf(command, sizeof command, "cp %s/metrics.csv %s/before", folder, folder);
    assert_int_equal(system(command), 0);
    for (int c = 0; c < 3; c++) {
        rank ranks[MOST_RANKS] = {0};
        run_ranks((rank){.folder = folder, .options.resume = c == 2 ? older : NULL}, c == 1 ? 2 : 1, ranks);
        assert_int_equal(ranks[0].status, TR_STATE);
        assert_non_null(strstr(ranks[0].message, "holds checkpoint-8, of a later step than "));
        if (c == 1) assert_int_equal(ranks[1].status, TR_PEER);
    }
    snprintf(command, sizeof command, "cmp %s/metrics.csv %s/before && test -d %s/checkpoint-8 && test -d %s", folder,
        folder, folder, older);
    assert_int_equal(system(command), 0);
    train_alone((rank){.folder = folder, .options.resume = folder});
}

static void all_stop_when_one_wants_to(void **state)
{
    (void)state;
    rank ranks[MOST_RANKS] = {{.stop_after = 0}, {.stop_after = 4}, {.stop_after = 9}};
    run_ranks((rank){.folder = folder}, 3, ranks);
    for (int i = 0; i < 3; i++) {
        assert_well(&ranks[i]);
        assert_int_equal(ranks[i].steps, 4);
        assert_true(ranks[i].report.stopped);
    }
    char path[4096];
    int64_t step;
    assert_int_equal(tr_checkpoint_find(folder, path, &step), TR_OK);
    assert_int_equal(step, 4);
}

/* Rank 0 alone touches files: what goes wrong there is its failure, and the others' that a peer is lost. */
static void a_failure_of_rank_0_reaches_the_others(void **state)
{
    (void)state;
    const rank cases[] = {
        {.folder = "/dev/null/nowhere"}, {.options.resume = "/nowhere"}, {.options.resume = folder}, /* no checkpoint in it */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rank ranks[MOST_RANKS] = {0};
        run_ranks(cases[c], 3, ranks);
        assert_true(ranks[0].status != TR_OK && ranks[0].status != TR_PEER);
        assert_non_null(strstr(ranks[0].message, c < 2 ? "/nowhere" : folder));
        assert_int_equal(ranks[1].status, TR_PEER);
        assert_int_equal(ranks[2].status, TR_PEER);
    }
}

/* With the reason, and before the rank lets the group go. */
static void a_failure_of_one_rank_reaches_the_others(void **state)
{
    (void)state;
    static const char *const says[] = {[DATA] = "/nowhere", [LOSS] = "the disk is full", [VALIDATION] = "the disk is full",
        [OPTIONS] = "fit: .stop_at, .validate_every and .save_every"};
    for (int fails = DATA; fails <= OPTIONS; fails++) {
        rank ranks[MOST_RANKS] = {0};
        run_ranks((rank){.fails = fails}, 3, ranks);
        for (int i = 0; i < 3; i++) {
            assert_true(i == 1 ? ranks[i].status != TR_OK && ranks[i].status != TR_PEER : ranks[i].status == TR_PEER);
            if (!strstr(ranks[i].message, says[fails])) fail_msg("rank %d: %s", i, ranks[i].message);
            if (i != 1 && !strstr(ranks[i].message, "rank 1 ")) fail_msg("rank %d: %s", i, ranks[i].message);
        }
    }
}

static void a_diverged_run_says_so_on_every_rank(void **state)
{
    (void)state;
    rank ranks[MOST_RANKS] = {0};
    run_ranks((rank){.options = {.lr = 1e6, .clip = TR_ZERO}}, 2, ranks);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, TR_INVALID);
        assert_non_null(strstr(ranks[i].message, "training has diverged"));
        assert_true(ranks[i].report.common_failure);
    }
    run_ranks((rank){.options = {.lr = 1e6, .clip = TR_ZERO}, .again = true}, 2, ranks); /* what fails next does so on one rank */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, i == 1 ? TR_INVALID : TR_PEER);
        assert_non_null(strstr(ranks[i].message, "trainer_step: row is NULL"));
    }
}

/* The loss of the first step, and that of the validation behind it. */
static void first_losses(tr_dtype option, tr_dtype callers, double losses[2])
{
    TR_SCOPE;
    tr_module *model = tr_gpt(.vocab = 256, .context = 8, .layers = 1, .heads = 2, .dim = 8, .seed = 1);
    tr_trainer *t = tr_trainer_new(model, tr_text_load(text_path), .context = 8, .steps = 2, .autocast = option);
    tr_metrics_row row;
    tr_score score;
    TR_AUTOCAST(callers);
    TR_CHECK(tr_trainer_step(t, &row, &(bool){false}));
    TR_CHECK(tr_trainer_validate(t, &score));
    assert_int_equal(tr_autocast(), callers);
    losses[0] = row.loss;
    losses[1] = score.loss;
}

static void the_callers_autocast_counts_where_none_is_given(void **state)
{
    (void)state;
    double none[2], given[2], callers[2], both[2];
    first_losses(0, TR_F32, none);
    first_losses(TR_BF16, TR_F32, given);
    first_losses(0, TR_BF16, callers);
    first_losses(TR_BF16, TR_F16, both);
    for (int i = 0; i < 2; i++) assert_true(given[i] != none[i] && callers[i] == given[i] && both[i] == given[i]);
}

static tr_tensor *spoilt(tr_module *net, tr_tensor *x, tr_tensor *y, void *user)
{
    return *(bool *)user ? tr_matmul(x, x) : tr_cross_entropy(tr_forward(net, x), y);
}

/* What the user has frozen stays so, also when the validation fails. */
static void a_schedule_may_be_as_good_as_endless(void **state)
{
    (void)state;
    rank one[MOST_RANKS] = {{.stop_after = STEPS}};
    run_ranks((rank){.options.steps = (int64_t)1 << 61}, 1, one);
    assert_well(one);
    assert_true(one[0].report.stopped && one[0].steps == STEPS && one[0].report.step_ms_median > 0);
}

static void validation_leaves_modes_as_they_were(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *model = tr_gpt(.vocab = 256, .context = 8, .layers = 2, .heads = 2, .dim = 8, .dropout = 0.1);
    bool fails = false;
    tr_trainer *t = tr_trainer_new(model, tr_text_load(text_path), .context = 8, .steps = 2, .loss = spoilt, .user = &fails);
    TR_CHECK(tr_eval(tr_module_find(model, "h.0")));
    tr_score score;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tr_trainer_validate(t, &score) != TR_OK, fails);
        assert_true(tr_module_training(model) && tr_module_training(tr_module_find(model, "h.1")));
        assert_false(tr_module_training(tr_module_find(model, "h.0")));
        fails = true;
    }
}

/* NaN from the validation after step 8 on. */
static tr_tensor *diverges(tr_module *net, tr_tensor *x, tr_tensor *y, void *user)
{
    const tr_trainer *const *t = user;
    tr_tensor *loss = tr_cross_entropy(tr_forward(net, x), y);
    return !tr_grad_enabled() && tr_trainer_steps(*t) >= 8 ? tr_affine(loss, NAN, 0) : loss;
}

/* A model that has diverged keeps no score of before, by which it would be kept as the best. */
static void a_validation_without_a_number_is_no_best(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *model = tr_gpt(.vocab = 256, .context = 8, .layers = 1, .heads = 1, .dim = 8);
    tr_trainer *t;
    tr_fit_report report;
    t = tr_trainer_new(model, tr_text_load(text_path), .context = 8, .global_batch = 6, .steps = STEPS, .loss = diverges, .user = &t);
    TR_CHECK(tr_fit(t, .folder = folder, .validate_every = 4, .save_every = 4, .keep = 1, .keep_best = true, .report = &report));
    assert_true(isnan(report.validation_loss) && report.best_validation_loss > 0);
    char path[4096];
    int64_t step;
    double loss;
    TR_CHECK(tr_checkpoint_find_best(folder, path, &step, &loss));
    assert_true(step == 4 && loss == report.best_validation_loss);
    tr_trainer *resumed = tr_trainer_new(model, tr_text_load(text_path), .context = 8, .global_batch = 6, .steps = STEPS,
        .loss = diverges, .user = &t, .resume = folder);
    TR_CHECK(tr_fit(resumed, .report = &report));
    assert_true(isnan(report.validation_loss) && report.best_validation_loss == loss);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *model = tr_gpt(.context = 8, .layers = 1, .heads = 1, .dim = 4);
    tr_text *text = tr_text_load(text_path);
    bool stop = false;
    tr_metrics_row row;
    tr_score score;
    assert_int_equal(tr_trainer_step(NULL, &row, &stop), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "trainer_step: no trainer"));
    assert_int_equal(tr_trainer_validate(NULL, &score), TR_INVALID);
    assert_int_equal(tr_trainer_save(NULL, "nowhere", NULL), TR_INVALID);
    tr_trainer *unused = tr_trainer_new(model, text, .context = 8);
    assert_int_equal(tr_trainer_step(unused, NULL, &stop), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "trainer_step: row is NULL"));
    assert_int_equal(tr_trainer_step(unused, &row, NULL), TR_INVALID);
    assert_int_equal(tr_trainer_validate(unused, NULL), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "trainer_validate: score is NULL"));
    assert_int_equal(tr_trainer_steps(NULL) + tr_trainer_skipped(NULL) + tr_trainer_passed_over(NULL), 0);
    assert_int_equal(tr_status_of(tr_trainer_new(NULL, text)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_trainer_new(model, NULL)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = -1)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = 1000000)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "too short for a context of 1000000, which takes at least 1000001"));
    const tr_masking masking = {.mask = 256, .vocab = 259, .begin = 257, .end = 258};
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = 2, .masking = &masking)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "a context of 2 leaves no token"));
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = tr_text_tokens(text, false) + 3, .masking = &masking)),
        TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "too short for a context of "));
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = tr_text_tokens(text, false) + 2, .masking = &masking)),
        TR_OK);
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = 8, .lr = -1)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = 8, .global_batch = -1)), TR_INVALID);
    assert_int_equal(tr_status_of(tr_trainer_new(model, text, .context = 8, .autocast = TR_F64)), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "TR_BF16 or TR_F16, or 0 for the caller's, not f64"));
    tr_trainer *good = tr_trainer_new(model, text, .context = 8);
    assert_int_equal(tr_status_of(good), TR_OK);
    assert_int_equal(tr_fit(good, .stop_at = -1), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "0 and more, not -1, 250 and 0"));
    assert_int_equal(tr_fit(good, .folder = folder, .keep = 1001), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "fit: .keep is a number of checkpoints, 1 to 1000, not 1001"));
    tr_tensor_list *about = tr_list_new();
    TR_CHECK(tr_list_set_metadata(about, "data", "f\374r"));
    assert_int_equal(tr_fit(good, .folder = folder, .about = about), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "about's metadata \"data\" is not UTF-8"));
    assert_int_equal(tr_trainer_steps(good), 0);
    assert_int_equal(tr_fit(tr_trainer_new(model, tr_text_load("/nowhere"))), TR_NOT_FOUND);
    /* A context that the model does not have shows at the first step. */
    assert_int_equal(tr_fit(tr_trainer_new(model, text, .context = 16, .steps = 1)), TR_SHAPE);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_split_learns_the_same),
        TEST(an_uneven_share_is_weighed),
        TEST(a_resumed_run_is_as_an_unbroken_one),
        TEST(the_largest_batch_is_too_large),
        TEST(leftovers_of_a_kill_go_with_the_next_run),
        TEST(a_run_that_goes_on_from_elsewhere_is_saved),
        TEST(the_history_is_the_checkpoints),
        TEST(a_checkpoint_without_a_history_goes_on),
        TEST(wrong_numbers_of_a_checkpoint_are_refused),
        TEST(a_folder_that_goes_is_an_error),
        TEST(what_has_come_further_is_not_thrown_away),
        TEST(all_stop_when_one_wants_to),
        TEST(a_failure_of_rank_0_reaches_the_others),
        TEST(a_failure_of_one_rank_reaches_the_others),
        TEST(a_diverged_run_says_so_on_every_rank),
        TEST(the_callers_autocast_counts_where_none_is_given),
        TEST(a_schedule_may_be_as_good_as_endless),
        TEST(validation_leaves_modes_as_they_were),
        TEST(a_validation_without_a_number_is_no_best),
        TEST(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
