/* Checkpoints and metrics files: whenever a process ends, what it leaves is good. */
#include <trireme/train.h>

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
    tr_tensor_list *model = tr_list(), *state = tr_list();
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

static void the_one_just_saved_stays(void **state)
{
    (void)state;
    assert_int_equal(save(50, 10), TR_OK);
    assert_int_equal(save(100, 10), TR_OK);
    assert_int_equal(save(5, 10), TR_OK);
    assert_true(is_there("checkpoint-5") && is_there("checkpoint-50") && is_there("checkpoint-100"));
    assert_int_equal(save(7, 10), TR_OK);
    assert_true(is_there("checkpoint-7") && is_there("checkpoint-50") && is_there("checkpoint-100"));
    assert_false(is_there("checkpoint-5"));
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
    assert_int_equal(tr_checkpoint_save(below, 5, tr_list(), tr_list()), TR_OK);
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
    assert_int_equal(tr_checkpoint_save("/dev/null/nowhere", 1, tr_list(), tr_list()), TR_IO);
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
    assert_int_equal(tr_checkpoint_load(path, &model, &rest), TR_NOT_FOUND);
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

static void a_resumed_file_is_as_an_unbroken_one(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_metrics *whole = tr_metrics_open(in_folder("whole.csv"), 0);
    add_rows(whole, 1, 20);
    assert_int_equal(tr_metrics_sync(whole), TR_OK);
    tr_metrics *first = tr_metrics_open(in_folder("broken.csv"), 0);
    add_rows(first, 1, 13);
    FILE *f = fopen(in_folder("broken.csv"), "a");
    fputs("14,107", f); /* killed while it wrote */
    fclose(f);
    tr_metrics *second = tr_metrics_open(in_folder("broken.csv"), 10);
    assert_int_equal(tr_status_of(second), TR_OK);
    int64_t count;
    const tr_metrics_row *rows = tr_metrics_rows(second, &count);
    assert_int_equal(count, 10);
    assert_int_equal(rows[9].step, 10);
    assert_true(rows[9].validation_loss == 2.5 && isnan(rows[8].validation_loss));
    assert_true((float)rows[9].grad_norm == 0.1f);
    add_rows(second, 11, 20);
    char *expected = strdup(read_all("whole.csv"));
    assert_string_equal(read_all("broken.csv"), expected);
    free(expected);
}

static void a_cut_header_is_written_again(void **state)
{
    (void)state;
    TR_SCOPE;
    write_text("m.csv", "step,tok");
    tr_metrics *m = tr_metrics_open(in_folder("m.csv"), 5);
    assert_int_equal(tr_status_of(m), TR_OK);
    add_rows(m, 1, 1);
    assert_int_equal(
        strncmp(read_all("m.csv"), "step,tokens,lr,loss,validation_loss,tokens_per_s,grad_norm,seconds\n1,768,", 70),
        0);
}

static void foreign_metrics_stay_as_they_are(void **state)
{
    (void)state;
    static const char head[] = "step,tokens,lr,loss,validation_loss,tokens_per_s,grad_norm,seconds\n";
    static const char *const rows[] = {"name,age\nx,1\n", "1,2\n", "x,1,1,1,1,1,1,1\n", "1,2,3,4,5,6,7,8,9\n",
        "1,2,,4,5,6,7,8\n", ",2,3,4,5,6,7,8\n", "-1,2,3,4,5,6,7,8\n", "1e300,2,3,4,5,6,7,8\n", "\n",
        "1,2,3,4,5,6, 7,8\n"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TR_SCOPE;
        char text[256];
        snprintf(text, sizeof text, "%s%s", i ? head : "", rows[i]);
        write_text("m.csv", text);
        assert_int_equal(tr_status_of(tr_metrics_open(in_folder("m.csv"), 100)), TR_FORMAT);
        assert_string_equal(read_all("m.csv"), text);
    }
    TR_SCOPE;
    assert_int_equal(tr_status_of(tr_metrics_open("/nowhere/m.csv", 0)), TR_IO);
    assert_int_equal(tr_status_of(tr_metrics_open(folder, 0)), TR_IO);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_newest_two_are_kept),
        TEST(the_one_just_saved_stays),
        TEST(what_lies_in_a_checkpoint_goes_with_it),
        TEST(what_cannot_be_removed_fails_no_save),
        TEST(a_file_with_a_checkpoints_name_is_none),
        TEST(the_folder_is_made),
        TEST(one_is_found_by_its_own_path),
        TEST(only_names_of_checkpoints_count),
        TEST(the_same_step_can_be_saved_again),
        TEST(leftovers_of_a_killed_save_do_no_harm),
        TEST(a_kill_at_any_time_leaves_a_good_one),
        TEST(a_full_disk_leaves_the_old_one),
        TEST(damage_is_named),
        TEST(a_resumed_file_is_as_an_unbroken_one),
        TEST(a_cut_header_is_written_again),
        TEST(foreign_metrics_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
