/* Checkpoints and metrics files: whenever a process ends, what it leaves is good. */
#define _GNU_SOURCE /* for renameat2 */
#include <trireme/train.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static char path[4096];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-checkpoint-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char text[256];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static bool is_there(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* A checkpoint whose every value is its step. */
static tr_status save(int64_t step, int64_t size)
{
    TR_SCOPE;
    tr_tensor_list *model = tr_list_new(), *state = tr_list_new();
    assert_int_equal(tr_list_add(model, "w", tr_full((double)step, TR_SHAPE(size))), TR_OK);
    assert_int_equal(tr_list_add(state, "m", tr_full((double)step, TR_SHAPE(2 * size))), TR_OK);
    return tr_checkpoint_save(folder, step, model, state);
}

/* The step of the newest checkpoint, after a look that it is whole and of one step. */
static int64_t newest(void)
{
    TR_SCOPE;
    int64_t step;
    assert_int_equal(tr_checkpoint_find(folder, path, &step), TR_OK);
    tr_tensor_list *model, *state;
    assert_int_equal(tr_checkpoint_load(path, &model, &state), TR_OK);
    float *w = tr_data(tr_list_find(model, "w")), *m = tr_data(tr_list_find(state, "m"));
    assert_true(*w == (float)step && *m == (float)step);
    return step;
}

static void the_newest_two_are_kept(void **state)
{
    (void)state;
    int64_t step = 3;
    strcpy(path, "as it was");
    assert_int_equal(tr_checkpoint_find(folder, path, &step), TR_NOT_FOUND);
    assert_int_equal(tr_checkpoint_find("/nowhere", path, &step), TR_NOT_FOUND);
    assert_int_equal(step, 3);
    assert_string_equal(path, "as it was");
    for (int64_t s = 5; s <= 20; s += 5) {
        assert_int_equal(save(s, 10), TR_OK);
        assert_int_equal(newest(), s);
    }
    assert_false(is_there("checkpoint-5"));
    assert_false(is_there("checkpoint-10"));
    assert_true(is_there("checkpoint-15"));
    assert_true(is_there("checkpoint-20"));
}

static void log_nothing(tr_log_level level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

/* Two trainings in one folder would mix. What is damaged does not count, and stays under another name. */
static void no_save_before_a_later_checkpoint(void **state)
{
    (void)state;
    for (int64_t step = 5; step <= 15; step += 5) assert_int_equal(save(step, 10), TR_OK);
    for (int64_t step = 1; step < 15; step += 6) assert_int_equal(save(step, 10), TR_STATE);
    char words[200];
    snprintf(words, sizeof words, "%s holds checkpoint-15, of a later step than 13: of another training? Resume from it, remove it, or "
        "choose another folder", folder);
    assert_string_equal(tr_error_message(), words);
    assert_true(is_there("checkpoint-10") && is_there("checkpoint-15"));
    assert_false(is_there("checkpoint-1") || is_there("checkpoint-7") || is_there("checkpoint-13"));
    assert_int_equal(save(15, 20), TR_OK);
    assert_int_equal(newest(), 15);

    tr_set_log(log_nothing, NULL, TR_LOG_WARN);
    write_text("checkpoint-15/model.safetensors", "damage");
    assert_int_equal(save(3, 10), TR_STATE); /* the one before it is of a later step, too */
    assert_true(is_there("checkpoint-15"));
    assert_int_equal(save(11, 10), TR_OK);
    tr_set_log(NULL, NULL, TR_LOG_WARN);
    assert_int_equal(newest(), 11);
    assert_true(is_there("damaged-checkpoint-15") && is_there("checkpoint-10"));
}

static tr_status save_with_loss(int64_t step, double loss)
{
    TR_SCOPE;
    return tr_checkpoint_save(folder, step, tr_list_new(), tr_list_new(), .loss = &loss, .keep = 1, .keep_best = true);
}

static void the_best_is_found(void **state)
{
    (void)state;
    const double losses[] = {3, 1, 2, NAN};
    int64_t step = 7;
    double loss = 0.5;
    assert_int_equal(save(1, 10), TR_OK);
    assert_int_equal(tr_checkpoint_find_best(folder, path, &step, &loss), TR_NOT_FOUND);
    assert_non_null(strstr(tr_error_message(), "has no checkpoint with a validation loss: save with .loss"));
    assert_true(step == 7 && loss == 0.5);
    for (int i = 0; i < 4; i++) assert_int_equal(save_with_loss(2 + i, losses[i]), TR_OK);
    assert_int_equal(tr_checkpoint_find_best(folder, path, &step, &loss), TR_OK);
    assert_true(step == 3 && loss == 1);
    assert_string_equal(path, in_folder("checkpoint-3"));
    path[0] = 0;
    assert_int_equal(tr_checkpoint_find_best(folder, path, NULL, NULL), TR_OK);
    assert_string_equal(path, in_folder("checkpoint-3"));
    assert_int_equal(tr_checkpoint_find_best("/nowhere", path, &step, &loss), TR_NOT_FOUND);
}

/* A manifest holds no larger one exactly. */
static void a_step_that_could_not_be_read_back_is_not_saved(void **state)
{
    (void)state;
    const int64_t most = INT64_C(1) << 53;
    int64_t step;
    assert_int_equal(save(most, 10), TR_OK);
    assert_int_equal(tr_checkpoint_find_whole(folder, path, &step), TR_OK);
    assert_true(step == most);
    assert_int_equal(save(most + 1, 10), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), ".step is 0 to 2^53"));
    assert_int_equal(save(-1, 10), TR_INVALID);
}

/* NULL where something is wanted is an error that names it. */
static void null_is_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    int64_t step;
    tr_metrics_row row = {0};
    tr_tensor_list *list = tr_list_new();
    assert_null(tr_metrics_rows(NULL, &step));
    assert_int_equal(step, 0);
    const struct {
        tr_status status;
        const char *message;
    } cases[] = {
#define CASE(call, text) {(call), strstr(tr_error_message(), text) ? NULL : text}
        CASE(tr_checkpoint_load(folder, NULL, NULL), "checkpoint_load: model is NULL"),
        CASE(tr_checkpoint_load(NULL, &list, NULL), "checkpoint_load: the path is NULL"),
        CASE(tr_checkpoint_find(NULL, path, &step), "checkpoint_find: the folder is NULL"),
        CASE(tr_checkpoint_find(folder, NULL, &step), "checkpoint_find: path is NULL"),
        CASE(tr_checkpoint_find(folder, path, NULL), "checkpoint_find: step is NULL"),
        CASE(tr_checkpoint_find_whole(NULL, path, &step), "checkpoint_find: the folder is NULL"),
        CASE(tr_checkpoint_find_whole(folder, NULL, &step), "checkpoint_find_whole: path is NULL"),
        CASE(tr_checkpoint_find_whole(folder, path, NULL), "checkpoint_find_whole: step is NULL"),
        CASE(tr_checkpoint_find_best(NULL, path, NULL, NULL), "checkpoint_find_best: the folder is NULL"),
        CASE(tr_checkpoint_find_best(folder, NULL, NULL, NULL), "checkpoint_find_best: path is NULL"),
        CASE(tr_checkpoint_save(NULL, 1, list, list), "checkpoint_save: the folder is NULL"),
        CASE(tr_checkpoint_save(folder, 1, NULL, list), "checkpoint_save: model is NULL"),
        CASE(tr_checkpoint_save(folder, 1, list, NULL), "checkpoint_save: state is NULL"),
        CASE(tr_write_file(NULL, "", 0), "the path of the file to write is NULL"),
        CASE(tr_safetensors_save(NULL, list), "the path of the file to write is NULL"),
        CASE(tr_status_of(tr_metrics_open(NULL)), "metrics_open: the path is NULL"),
        CASE(tr_metrics_add(NULL, &row), "metrics_add: the metrics are NULL"),
        CASE(tr_metrics_add(tr_metrics_open(in_folder("m.csv")), NULL), "metrics_add: the row is NULL"),
        CASE(tr_metrics_sync(NULL), "metrics_sync: the metrics are NULL"),
#undef CASE
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].message) fail_msg("no message says \"%s\"", cases[i].message);
        assert_int_equal(cases[i].status, TR_INVALID);
    }
}

/* Whatever somebody has put into a checkpoint goes with it; what a link leads to stays. */
static void what_lies_in_a_checkpoint_goes_with_it(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_folder("mine"), 0700), 0);
    write_text("mine/note", "text");
    assert_int_equal(save(1, 10), TR_OK);
    assert_int_equal(mkdir(in_folder("checkpoint-1/logs"), 0700), 0);
    assert_int_equal(mkdir(in_folder("checkpoint-1/logs/deep"), 0700), 0);
    write_text("checkpoint-1/logs/deep/note", "text");
    assert_int_equal(symlink("../mine", in_folder("checkpoint-1/link")), 0);
    assert_int_equal(symlink("../../mine", in_folder("checkpoint-1/logs/link")), 0);
    for (int64_t s = 2; s <= 4; s++) assert_int_equal(save(s, 10), TR_OK);
    assert_int_equal(newest(), 4);
    assert_false(is_there("checkpoint-1") || is_there("checkpoint-2") || is_there(".checkpoint.old"));
    assert_true(is_there("mine/note"));
}

/* A mount, say, cannot be removed: the save itself has gone well. */
static void what_cannot_be_removed_fails_no_save(void **state)
{
    (void)state;
    assert_int_equal(save(1, 10), TR_OK);
    assert_int_equal(mkdir(in_folder("checkpoint-1/mine"), 0700), 0);
    write_text("checkpoint-1/mine/note", "text");
    assert_int_equal(chmod(in_folder("checkpoint-1/mine"), 0500), 0);
    for (int64_t s = 2; s <= 5; s++) assert_int_equal(save(s, 10), TR_OK);
    assert_int_equal(newest(), 5);
    if (is_there(".checkpoint.old/mine")) assert_int_equal(chmod(in_folder(".checkpoint.old/mine"), 0700), 0);
    assert_int_equal(save(6, 10), TR_OK);
    assert_false(is_there(".checkpoint.old") || is_there("checkpoint-4"));
}

static void a_file_with_a_checkpoints_name_is_none(void **state)
{
    (void)state;
    write_text("checkpoint-5", "mine");
    write_text("checkpoint-99", "mine");
    int64_t step;
    assert_int_equal(tr_checkpoint_find(folder, path, &step), TR_NOT_FOUND);
    for (int64_t s = 4; s <= 8; s++) {
        assert_int_equal(save(s, 10), TR_OK); /* one takes the file's name, which is a checkpoint's */
        assert_int_equal(newest(), s);
    }
    assert_false(is_there("checkpoint-6"));
    assert_true(is_there("checkpoint-7") && is_there("checkpoint-99"));
}

static void the_folder_is_made(void **state)
{
    (void)state;
    TR_SCOPE;
    char below[80];
    int64_t step;
    snprintf(below, sizeof below, "%s/a/b//", folder);
    assert_int_equal(tr_checkpoint_save(below, 5, tr_list_new(), tr_list_new()), TR_OK);
    assert_int_equal(tr_checkpoint_find(in_folder("a/b"), path, &step), TR_OK);
    assert_int_equal(step, 5);
}

static void one_is_found_by_its_own_path(void **state)
{
    (void)state;
    int64_t step;
    assert_int_equal(save(5, 10), TR_OK);
    assert_int_equal(save(20, 10), TR_OK);
    char own[128];
    snprintf(own, sizeof own, "%s/checkpoint-5/", folder);
    assert_int_equal(tr_checkpoint_find(own, path, &step), TR_OK);
    assert_int_equal(step, 5);
}

static void only_names_of_checkpoints_count(void **state)
{
    (void)state;
    assert_int_equal(save(7, 10), TR_OK);
    static const char *const others[] = {"checkpoint-", "checkpoint-08", "checkpoint-9x", "checkpoint--9",
        "checkpoint-+9", "checkpoint-99999999999999999999", ".checkpoint.tmp"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_int_equal(mkdir(in_folder(others[i]), 0700), 0);
    assert_int_equal(newest(), 7);
    assert_int_equal(save(8, 10), TR_OK);
    assert_int_equal(save(9, 10), TR_OK);
    assert_int_equal(newest(), 9);
    assert_true(is_there("checkpoint-9x"));
}

static void the_same_step_can_be_saved_again(void **state)
{
    (void)state;
    assert_int_equal(save(3, 10), TR_OK);
    assert_int_equal(save(3, 500), TR_OK);
    assert_int_equal(newest(), 3);
    assert_false(is_there(".checkpoint.tmp"));
}

/* Every state of the folder that a kill can leave: parts of a new checkpoint under the temporary name, with and without
 * their files, and an old one half removed. */
static void leftovers_of_a_killed_save_do_no_harm(void **state)
{
    (void)state;
    for (int point = 0; point < 5; point++) {
        assert_int_equal(save(10 + point, 10), TR_OK);
        assert_int_equal(mkdir(in_folder(".checkpoint.tmp"), 0700), 0);
        if (point >= 1) write_text(".checkpoint.tmp/.model.safetensors.0123456789abcdef.tmp", "half");
        if (point >= 2) write_text(".checkpoint.tmp/model.safetensors", "a model");
        if (point >= 3) write_text(".checkpoint.tmp/state.safetensors", "a state");
        if (point >= 4) {
            assert_int_equal(mkdir(in_folder(".checkpoint.old"), 0700), 0);
            write_text(".checkpoint.old/state.safetensors", "old");
        }
        assert_int_equal(newest(), 10 + point);
    }
    assert_int_equal(save(20, 10), TR_OK);
    assert_int_equal(newest(), 20);
    assert_false(is_there(".checkpoint.tmp"));
    assert_int_equal(save(21, 10), TR_OK);
    assert_false(is_there(".checkpoint.old"));
}

/* A file system that cannot exchange, on which the process is killed before the rename that brings this to 0; -1: neither. */
static int renames = -1;

int renameat(int from, const char *name, int to, const char *new_name)
{
    if (renames >= 0 && renames-- == 0) kill(getpid(), SIGKILL);
    return (int)syscall(SYS_renameat2, from, name, to, new_name, 0);
}

int renameat2(int from, const char *name, int to, const char *new_name, unsigned flags)
{
    if (renames < 0 || !(flags & RENAME_EXCHANGE)) return (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
    errno = faccessat(to, new_name, F_OK, 0) == 0 ? EINVAL : ENOENT;
    return -1;
}

static tr_status save_one(int64_t step, double loss)
{
    TR_SCOPE;
    tr_tensor_list *model = tr_list_new(), *state = tr_list_new();
    assert_int_equal(tr_list_add(model, "w", tr_full((double)step, TR_SHAPE(10))), TR_OK);
    assert_int_equal(tr_list_add(state, "m", tr_full((double)step, TR_SHAPE(10))), TR_OK);
    return tr_checkpoint_save(folder, step, model, state, .keep = 1, .loss = &loss);
}

/* Before and after each rename there is one to find, and the next save leaves it, or the new one, under its own name alone. */
static void a_kill_while_one_is_replaced_loses_none(void **state)
{
    (void)state;
    enum { MOST = 20 };
    bool ended = false, was_aside = false;
    int kills = 0;
    assert_int_equal(save_one(7, 2), TR_OK);
    for (; !ended && kills < MOST; kills++) {
        pid_t child = fork();
        if (child == 0) {
            renames = kills;
            _exit(save_one(7, 1) == TR_OK ? 0 : 1);
        }
        int how;
        int64_t step;
        assert_int_equal(waitpid(child, &how, 0), child);
        ended = WIFEXITED(how);
        assert_int_equal(ended ? WEXITSTATUS(how) : WTERMSIG(how), ended ? 0 : SIGKILL);
        was_aside |= !is_there("checkpoint-7");
        assert_int_equal(newest(), 7);
        assert_int_equal(tr_checkpoint_find_best(folder, path, &step, NULL), TR_OK);
        assert_int_equal(step, 7);
        assert_int_equal(tr_checkpoint_find_whole(folder, path, &step), TR_OK);
        assert_int_equal(step, 7);
        if (kills % 2) assert_int_equal(save_one(7, 3), TR_OK);
        if (kills % 2) assert_true(is_there("checkpoint-7") && !is_there(".checkpoint-7"));
    }
    assert_true(ended && was_aside && kills > 3);
    assert_true(is_there("checkpoint-7") && !is_there(".checkpoint-7") && !is_there(".checkpoint.tmp"));
}

/* A process that saves without end is killed at random times: what it leaves is always whole. */
static void a_kill_at_any_time_leaves_a_good_one(void **state)
{
    (void)state;
    assert_int_equal(save(0, 1000), TR_OK);
    int64_t before = 0;
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (child == 0)
            for (int64_t s = before + 1;; s++)
                if (save(s, 1000) != TR_OK) _exit(1);
        usleep((useconds_t)(1000 + 700 * round));
        kill(child, SIGKILL);
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how));
        int64_t now = newest();
        assert_true(now >= before);
        before = now;
    }
    assert_int_equal(save(before + 1, 1000), TR_OK);
    assert_int_equal(newest(), before + 1);
}

/* As in a job whose every rank saves: some are refused, and no save that succeeds is spoilt by another. */
static void savers_at_once_are_refused(void **state)
{
    (void)state;
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        for (int64_t s = 1; s <= 40; s++) {
            tr_status status = save(s, 1000);
            if (status != TR_OK && status != TR_STATE) _exit(1);
        }
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        int how;
        assert_int_equal(waitpid(children[i], &how, 0), children[i]);
        assert_int_equal(how, 0);
    }
    assert_true(newest() > 0);

    int other = open(folder, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(other, LOCK_EX), 0);
    assert_int_equal(save(50, 10), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "is saving into /tmp/trireme-checkpoint-"));
    assert_non_null(strstr(tr_error_message(), "of several ranks, rank 0 alone"));
    assert_false(is_there("checkpoint-50"));
    assert_int_equal(close(other), 0);
    assert_int_equal(save(50, 10), TR_OK);
    assert_int_equal(newest(), 50);
}

/* Each looks for what killed writers have left, and may meet the other's new file. */
static void several_write_one_file(void **state)
{
    (void)state;
    enum { WRITERS = 8, TIMES = 300 };
    for (int i = 0; i < WRITERS; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid > 0) continue;
        for (int k = 0; k < TIMES; k++)
            if (tr_write_file(in_folder("same.json"), "{}\n", 3) != TR_OK) _exit(1);
        _exit(0);
    }
    int failed = 0, how;
    while (wait(&how) > 0) failed += !WIFEXITED(how) || WEXITSTATUS(how) != 0;
    assert_int_equal(failed, 0);
}

static void a_full_disk_leaves_the_old_one(void **state)
{
    (void)state;
    assert_int_equal(save(1, 10), TR_OK);
    struct rlimit was, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){6000, was.rlim_max}; /* the model fits, the state does not */
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(save(2, 1000), TR_IO);
    assert_non_null(strstr(tr_error_message(), "state.safetensors: File too large"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);
    assert_false(is_there(".checkpoint.tmp"));
    assert_int_equal(newest(), 1);
    assert_int_equal(tr_checkpoint_save("/dev/null/nowhere", 1, tr_list_new(), tr_list_new()), TR_IO);
}

/* A row that found no room for all of itself leaves no part of a line before the next one. */
static void a_full_disk_cuts_no_row(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_metrics_row row = {.step = 1, .items = 1, .lr = 0.1, .loss = 1, .validation_loss = NAN, .grad_norm = NAN,
        .validation_accuracy = NAN};
    tr_metrics *m = tr_metrics_open(in_folder("full.csv"));
    assert_int_equal(tr_metrics_add(m, &row), TR_OK);
    struct stat s;
    assert_int_equal(stat(in_folder("full.csv"), &s), 0);
    struct rlimit was, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){(rlim_t)s.st_size + 3, was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    row.step = 2;
    assert_int_equal(tr_metrics_add(m, &row), TR_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);
    row.step = 3;
    assert_int_equal(tr_metrics_add(m, &row), TR_OK);
    row.step = 4;
    assert_int_equal(tr_metrics_add(m, &row), TR_OK);
    FILE *f = fopen(in_folder("full.csv"), "r");
    char line[256];
    int64_t rows = 0, step;
    for (assert_non_null(fgets(line, sizeof line, f)); fgets(line, sizeof line, f); rows++)
        assert_true(sscanf(line, "%ld,1,0.1,1,,", &step) == 1 && step == rows + 1);
    fclose(f);
    assert_int_equal(rows, 4);
}

static void damage_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(save(1, 10), TR_OK);
    assert_int_equal(truncate(in_folder("checkpoint-1/state.safetensors"), 100), 0);
    int64_t step;
    tr_tensor_list *model, *rest;
    assert_int_equal(tr_checkpoint_find(folder, path, &step), TR_OK);
    assert_int_equal(tr_checkpoint_load(path, &model, NULL), TR_OK);
    assert_int_equal(tr_checkpoint_load(path, &model, &rest), TR_FORMAT);
    assert_non_null(strstr(tr_error_message(), "checkpoint-1/state.safetensors"));
    assert_int_equal(unlink(in_folder("checkpoint-1/state.safetensors")), 0);
    assert_int_equal(tr_checkpoint_load(path, &model, &rest), TR_FORMAT);
    assert_non_null(strstr(tr_error_message(), "checkpoint-1/state.safetensors: is missing"));
}

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

static tr_metrics_row row_at(int64_t step)
{
    return (tr_metrics_row){
        step, 768 * step, 1e-3, 4.0 / (double)step, step % 5 ? NAN : 2.5, 12345.67, 0.1f, 0.5 * (double)step, NAN};
}

static void add_rows(tr_metrics *m, int64_t from, int64_t to)
{
    for (int64_t s = from; s <= to; s++) {
        tr_metrics_row row = row_at(s);
        assert_int_equal(tr_metrics_add(m, &row), TR_OK);
    }
}

static char *read_all(const char *name)
{
    static char text[65536];
    FILE *f = fopen(in_folder(name), "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    return text;
}

/* A checkpoint of that step, with the metrics. */
static void save_metrics(int64_t step, const tr_metrics *m)
{
    TR_SCOPE;
    assert_int_equal(tr_checkpoint_save(folder, step, tr_list_new(), tr_list_new(), .metrics = m), TR_OK);
}

static const char *checkpoint_at(int64_t step)
{
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, (int)step);
    return path;
}

static void a_resumed_file_is_as_an_unbroken_one(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_metrics *whole = tr_metrics_open(in_folder("whole.csv"));
    add_rows(whole, 1, 20);
    assert_int_equal(tr_metrics_sync(whole), TR_OK);
    tr_metrics *first = tr_metrics_open(in_folder("broken.csv"));
    add_rows(first, 1, 10);
    save_metrics(10, first);
    add_rows(first, 11, 13);
    FILE *f = fopen(in_folder("broken.csv"), "a");
    fputs("14,107", f); /* killed while it wrote */
    fclose(f);
    tr_metrics *second = tr_metrics_open(in_folder("broken.csv"), .checkpoint = checkpoint_at(10));
    assert_int_equal(tr_status_of(second), TR_OK);
    int64_t count;
    const tr_metrics_row *rows = tr_metrics_rows(second, &count);
    assert_int_equal(count, 10);
    for (int64_t s = 1; s <= 10; s++) {
        tr_metrics_row row = row_at(s);
        assert_memory_equal(&rows[s - 1], &row, sizeof row);
    }
    add_rows(second, 11, 20);
    char *expected = strdup(read_all("whole.csv"));
    assert_string_equal(read_all("broken.csv"), expected);
    free(expected);
}

/* The rows are the checkpoint's, whatever has become of the file. */
static void damage_to_the_file_is_none_to_the_metrics(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_metrics *m = tr_metrics_open(in_folder("m.csv"));
    add_rows(m, 1, 3);
    save_metrics(3, m);
    char *expected = strdup(read_all("m.csv"));
    for (size_t i = 0; expected[i]; i++) {
        TR_SCOPE;
        char *damaged = strdup(expected);
        damaged[i] = (char)(damaged[i] ^ 1 << i % 8);
        write_text("m.csv", damaged);
        free(damaged);
        assert_int_equal(tr_status_of(tr_metrics_open(in_folder("m.csv"), .checkpoint = checkpoint_at(3))), TR_OK);
        assert_string_equal(read_all("m.csv"), expected);
    }
    assert_int_equal(unlink(in_folder("m.csv")), 0);
    assert_int_equal(tr_status_of(tr_metrics_open(in_folder("m.csv"), .checkpoint = checkpoint_at(3))), TR_OK);
    assert_string_equal(read_all("m.csv"), expected);
    free(expected);
}

static void a_file_that_is_removed_is_written_again(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_metrics *m = tr_metrics_open(in_folder("m.csv"));
    add_rows(m, 1, 2);
    char *expected = strdup(read_all("m.csv"));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(unlink(in_folder("m.csv")), 0);
        if (round) write_text("m.csv", "somebody else's");
        assert_int_equal(tr_metrics_sync(m), TR_OK);
        assert_string_equal(read_all("m.csv"), expected);
    }
    add_rows(m, 3, 3);
    assert_int_equal(strncmp(read_all("m.csv"), expected, strlen(expected)), 0);
    assert_int_equal(strncmp(read_all("m.csv") + strlen(expected), "3,2304,", 7), 0);
    free(expected);
}

static void a_cut_header_is_written_again(void **state)
{
    (void)state;
    TR_SCOPE;
    write_text("m.csv", "step,tok");
    tr_metrics *m = tr_metrics_open(in_folder("m.csv"));
    assert_int_equal(tr_status_of(m), TR_OK);
    add_rows(m, 1, 1);
    assert_int_equal(
        strncmp(read_all("m.csv"), "step,tokens,lr,loss,validation_loss,tokens_per_s,grad_norm,seconds\n1,768,", 70),
        0);
}

static void foreign_files_stay_as_they_are(void **state)
{
    (void)state;
    TR_SCOPE;
    write_text("m.csv", "name,age\nx,1\n");
    assert_int_equal(tr_status_of(tr_metrics_open(in_folder("m.csv"))), TR_FORMAT);
    assert_non_null(strstr(tr_error_message(), "its first line should be \"step,tokens,lr,"));
    assert_string_equal(read_all("m.csv"), "name,age\nx,1\n");
    assert_int_equal(tr_status_of(tr_metrics_open("/nowhere/m.csv")), TR_IO);
    assert_int_equal(tr_status_of(tr_metrics_open(folder)), TR_FORMAT);
    assert_int_equal(tr_status_of(tr_metrics_open(in_folder("n.csv"), .checkpoint = folder)), TR_NOT_FOUND);
    assert_int_equal(save(1, 10), TR_OK); /* one without metrics */
    tr_metrics *m = tr_metrics_open(in_folder("n.csv"), .checkpoint = checkpoint_at(1));
    assert_int_equal(tr_status_of(m), TR_OK);
    int64_t count;
    tr_metrics_rows(m, &count);
    assert_int_equal(count, 0);
}

/* What cannot have been measured is refused, also of a checkpoint; any double can be written. */
static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_metrics *m = tr_metrics_open(in_folder("m.csv"), .accuracy = true);
    tr_metrics_row good = row_at(5), row = good;
    assert_int_equal(tr_metrics_add(m, &good), TR_OK);
    assert_int_equal(tr_metrics_add(m, &good), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "a row of step 5 after one of step 5"));
    good.step = 6;
    const struct {
        size_t offset;
        double value;
    } wrong[] = {
        {offsetof(tr_metrics_row, seconds), INFINITY}, {offsetof(tr_metrics_row, seconds), -1},
        {offsetof(tr_metrics_row, seconds), 1e10}, {offsetof(tr_metrics_row, validation_accuracy), 1.5},
        {offsetof(tr_metrics_row, lr), -1}, {offsetof(tr_metrics_row, grad_norm), -1},
        {offsetof(tr_metrics_row, items_per_s), -1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        row = good;
        memcpy((char *)&row + wrong[i].offset, &wrong[i].value, sizeof(double));
        assert_int_equal(tr_metrics_add(m, &row), TR_INVALID);
    }
    row = good;
    row.items = -1;
    assert_int_equal(tr_metrics_add(m, &row), TR_INVALID);
    row = (tr_metrics_row){7, INT64_MAX, 1.7e308, -1.7e308, -INFINITY, 1.7e308, 1.7e308, 1e9, 1};
    assert_int_equal(tr_metrics_add(m, &row), TR_OK);
    assert_true(strlen(read_all("m.csv")) > 450);
}

/* The columns of a sound history of three rows, with one changed or left out. */
static tr_status open_with_column(const char *name, tr_tensor *column)
{
    TR_SCOPE;
    save_metrics(3, tr_metrics_open(in_folder("m.csv")));
    const char *names[] = {"step", "items", "lr", "loss", "validation_loss", "items_per_s", "grad_norm", "seconds",
        "validation_accuracy"};
    tr_tensor_list *list = tr_list_new();
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const int64_t whole[] = {1, 2, 3};
        const double numbers[] = {0.1, 0.2, 0.3};
        tr_tensor *t = k < 2 ? tr_from(whole, TR_SHAPE(3), .dtype = TR_I64) : tr_from(numbers, TR_SHAPE(3), .dtype = TR_F64);
        if (strcmp(names[k], name) == 0) t = column;
        if (t) assert_int_equal(tr_list_add(list, names[k], t), TR_OK);
    }
    assert_int_equal(tr_safetensors_save(in_folder("checkpoint-3/history.safetensors"), list), TR_OK);
    /* As from before there were manifests. */
    assert_int_equal(tr_safetensors_save(in_folder("checkpoint-3/model.safetensors"), tr_list_new()), TR_OK);
    assert_int_equal(unlink(in_folder("checkpoint-3/manifest.json")), 0);
    return tr_status_of(tr_metrics_open(in_folder("m.csv"), .checkpoint = checkpoint_at(3)));
}

static void a_damaged_history_is_named(void **state)
{
    (void)state;
    TR_SCOPE;
    assert_int_equal(open_with_column("none", NULL), TR_OK);
    const struct {
        const char *name;
        tr_tensor *column;
        const char *message;
    } wrong[] = {
        {"step", NULL, "no column \"step\""},
        {"loss", NULL, "no column \"loss\""},
        {"loss", tr_zeros(TR_SHAPE(4), .dtype = TR_F64), "column \"loss\" is [4] of f64, not [3] of f64"},
        {"loss", tr_zeros(TR_SHAPE(3)), "is [3] of f32, not [3] of f64"},
        {"step", tr_from(((int64_t[]){1, 3, 2}), TR_SHAPE(3), .dtype = TR_I64), "a row of step 2 after one of step 3"},
        {"step", tr_from(((int64_t[]){-1, 1, 2}), TR_SHAPE(3), .dtype = TR_I64), "step -1"},
        {"step", tr_from(((int64_t[]){1, 2, INT64_MAX}), TR_SHAPE(3), .dtype = TR_I64), "step is 9.2"},
        {"items", tr_from(((int64_t[]){1, -2, 3}), TR_SHAPE(3), .dtype = TR_I64), "items is -2"},
        {"seconds", tr_from(((double[]){1, 2, INFINITY}), TR_SHAPE(3), .dtype = TR_F64), "step 3: seconds is inf"},
        {"validation_accuracy", tr_from(((double[]){1, 2, 1}), TR_SHAPE(3), .dtype = TR_F64), "validation_accuracy is 2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(open_with_column(wrong[i].name, wrong[i].column), TR_FORMAT);
        if (!strstr(tr_error_message(), wrong[i].message) || !strstr(tr_error_message(), "checkpoint-3"))
            fail_msg("%s: %s", wrong[i].message, tr_error_message());
    }
    assert_int_equal(truncate(in_folder("checkpoint-3/history.safetensors"), 100), 0);
    assert_int_equal(tr_status_of(tr_metrics_open(in_folder("m.csv"), .checkpoint = checkpoint_at(3))), TR_FORMAT);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_newest_two_are_kept),
        TEST(no_save_before_a_later_checkpoint),
        TEST(the_best_is_found),
        TEST(a_step_that_could_not_be_read_back_is_not_saved),
        TEST(null_is_refused),
        TEST(what_lies_in_a_checkpoint_goes_with_it),
        TEST(what_cannot_be_removed_fails_no_save),
        TEST(a_file_with_a_checkpoints_name_is_none),
        TEST(the_folder_is_made),
        TEST(one_is_found_by_its_own_path),
        TEST(only_names_of_checkpoints_count),
        TEST(the_same_step_can_be_saved_again),
        TEST(leftovers_of_a_killed_save_do_no_harm),
        TEST(a_kill_while_one_is_replaced_loses_none),
        TEST(a_kill_at_any_time_leaves_a_good_one),
        TEST(savers_at_once_are_refused),
        TEST(several_write_one_file),
        TEST(a_full_disk_leaves_the_old_one),
        TEST(a_full_disk_cuts_no_row),
        TEST(damage_is_named),
        TEST(a_resumed_file_is_as_an_unbroken_one),
        TEST(damage_to_the_file_is_none_to_the_metrics),
        TEST(a_file_that_is_removed_is_written_again),
        TEST(a_cut_header_is_written_again),
        TEST(foreign_files_stay_as_they_are),
        TEST(wrong_numbers_are_refused),
        TEST(a_damaged_history_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
