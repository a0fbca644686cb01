/* Stores: one list of checks on every kind; then what is particular to files, and who may come to a TCP store. */
#include "base/clock.h"
#include "net/store/store.h"
#include "net/tls.h"
#include "sockets.h"
#include "store_checks.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Every store ------------------------------------------------------------------------------------------------- */

static void check_compare_set(tr_store *store)
{
    void *now;
    size_t bytes;
    OK(tr_store_compare_set(store, "cs", "x", 1, "y", 1, &now, &bytes)); /* absent, and x was expected */
    assert_null(now);
    OK(tr_store_compare_set(store, "cs", NULL, 0, "y", 1, &now, &bytes));
    assert_string_equal(now, "y");
    free(now);
    OK(tr_store_compare_set(store, "cs", NULL, 0, "z", 1, &now, &bytes)); /* there, and nothing was expected */
    assert_string_equal(now, "y");
    free(now);
    OK(tr_store_compare_set(store, "cs", "y", 1, "long one", 8, &now, &bytes));
    assert_string_equal(now, "long one");
    assert_int_equal(bytes, 8);
    free(now);
}

static void check_delete(tr_store *store)
{
    bool deleted = true;
    int64_t sum;
    OK(tr_store_delete(store, "gone", &deleted));
    assert_false(deleted);
    OK(tr_store_set(store, "gone", "v", 1));
    OK(tr_store_delete(store, "gone", &deleted));
    assert_true(deleted);
    FAILS(TR_TIMEOUT, tr_store_wait(store, "gone", 1), "gone'");
    OK(tr_store_delete(store, "gone", NULL));
    OK(tr_store_add(store, "gone", 3, &sum)); /* it begins anew */
    assert_int_equal(sum, 3);
    check_value(store, "gone", "3", 1);
    OK(tr_store_delete(store, "gone", &deleted));
    assert_true(deleted);
    FAILS(TR_INVALID, tr_store_delete(store, "", NULL), "character");
}

static void check_limits(tr_store *store)
{
    char *key = malloc(TR__KEY_MAX + 2), *big = malloc(TR__VALUE_MAX + 1);
    memset(key, 'k', TR__KEY_MAX + 1);
    key[TR__KEY_MAX + 1] = 0;
    FAILS(TR_INVALID, tr_store_set(store, key, "v", 1), "1025 bytes");
    key[TR__KEY_MAX / 2] = 0;
    OK(tr_store_set(store, key, "v", 1));
    check_value(store, key, "v", 1);
    memset(big, 7, TR__VALUE_MAX + 1);
    FAILS(TR_INVALID, tr_store_set(store, "big", big, TR__VALUE_MAX + 1), "16777217 bytes");
    OK(tr_store_set(store, "big", big, TR__VALUE_MAX));
    check_value(store, "big", big, TR__VALUE_MAX);
    FAILS(TR_INVALID, tr_store_set(store, "", "v", 1), "character");
    FAILS(TR_INVALID, tr_store_set(store, NULL, "v", 1), "character");
    FAILS(TR_INVALID, tr_store_set(store, "k", NULL, 1), "NULL");
    free(key);
    free(big);
}

static void check_gathered(const tr__store_value *value, const char *wanted)
{
    if (wanted) assert_string_equal(value->data, wanted);
    else assert_null(value->data);
    assert_int_equal(value->bytes, wanted ? strlen(wanted) : 0);
}

/* Several keys in one call. */
static void check_gather(tr_store *store)
{
    static const char *const keys[] = {"g1", "g2", "g3", "g1"};
    tr__store_value values[4];
    OK(tr_store_set(store, "g1", "one", 3));
    OK(tr_store_set(store, "g2", NULL, 0));
    OK(tr__store_gather(store, keys, 2, 0, values));
    check_gathered(&values[0], "one");
    check_gathered(&values[1], "");
    tr__store_values_free(values, 2);
    FAILS(TR_TIMEOUT, tr__store_gather(store, keys, 4, 0, values), "key");
    tr__store_values_free(values, 4);
    FAILS(TR_TIMEOUT, tr__store_gather(store, keys, 4, 30, values), "key"); /* what is there comes all the same */
    check_gathered(&values[0], "one");
    check_gathered(&values[1], "");
    check_gathered(&values[2], NULL);
    check_gathered(&values[3], "one");
    tr__store_values_free(values, 4);
    pthread_t thread;
    setter late = {store, "g3", 50};
    pthread_create(&thread, NULL, set_later, &late);
    OK(tr__store_gather(store, keys, 4, 20000, values));
    pthread_join(thread, NULL);
    check_gathered(&values[2], "came");
    tr__store_values_free(values, 4);
    OK(tr_store_set(store, "g1", "two", 3)); /* an answer that was given before is not given again */
    OK(tr__store_gather(store, keys, 4, 20000, values));
    check_gathered(&values[0], "two");
    check_gathered(&values[3], "two");
    tr__store_values_free(values, 4);
    OK(tr__store_gather(store, keys, 0, 0, NULL));
    FAILS(TR_INVALID, tr__store_gather(store, (const char *const[]){"g1", ""}, 2, 0, values), "character");
}

static void check_prefix(tr_store *store)
{
    tr_store *inner = tr_store_prefix(tr_store_prefix(store, "p"), "q");
    OK(tr_status_of(inner));
    OK(tr_store_set(inner, "k", "v", 1));
    check_value(store, "p/q/k", "v", 1);
    check_basics(inner);
    check_compare_set(inner);
    check_delete(inner);
    check_gather(inner);
    FAILS(TR_TIMEOUT, tr_store_wait(inner, "missing", 1), "p/q/missing'");
}

static void check_store(tr_store *store)
{
    OK(tr_status_of(store));
    check_basics(store);
    check_compare_set(store);
    check_delete(store);
    check_limits(store);
    check_waits(store);
    check_gather(store);
    check_prefix(store);
}

static void memory_store(void **state)
{
    (void)state;
    TR_SCOPE;
    check_store(tr_store_memory());
}

/* ---- Another program's store: here one in memory, whose values have no NUL behind them --------------------------- */

typedef struct foreign {
    tr_store *store;
    int released;
} foreign;

static tr_store *behind(void *user)
{
    return ((foreign *)user)->store;
}

static void *without_nul(void *value, size_t bytes)
{
    void *copy = value ? malloc(bytes ? bytes : 1) : NULL;
    if (copy) memcpy(copy, value, bytes);
    free(value);
    return copy;
}

static tr_status foreign_set(void *user, const char *key, const void *value, size_t bytes)
{
    return tr_store_set(behind(user), key, value, bytes);
}

static tr_status foreign_get(void *user, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    tr_status status = tr__store_get(behind(user), key, timeout_ms, value, bytes);
    if (status == TR_OK) *value = without_nul(*value, *bytes);
    return status;
}

static tr_status foreign_add(void *user, const char *key, int64_t amount, int64_t *sum)
{
    return tr_store_add(behind(user), key, amount, sum);
}

static tr_status foreign_compare_set(void *user, const char *key, const void *expected, size_t expected_bytes,
    const void *desired, size_t desired_bytes, int timeout_ms, void **value, size_t *bytes)
{
    tr_status status = tr__store_compare_set(behind(user), key, expected, expected_bytes, desired, desired_bytes, timeout_ms,
        value, bytes);
    if (status == TR_OK) *value = without_nul(*value, *bytes);
    return status;
}

static tr_status foreign_delete(void *user, const char *key, bool *deleted)
{
    return tr_store_delete(behind(user), key, deleted);
}

static void foreign_release(void *user)
{
    ((foreign *)user)->released++;
}

static tr_status broken_get(void *user, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    (void)user, (void)timeout_ms, (void)value, (void)bytes;
    return strcmp(key, "nothing") == 0 ? TR_OK : tr_fail(TR_IO, "its link to %s is cut", key);
}

/* Fail without a word. */
static tr_status silent_set(void *user, const char *key, const void *value, size_t bytes)
{
    (void)user, (void)key, (void)value, (void)bytes;
    return TR_IO;
}

static tr_status silent_get(void *user, const char *key, int timeout_ms, void **value, size_t *bytes)
{
    (void)user, (void)key, (void)timeout_ms, (void)value, (void)bytes;
    return TR_TIMEOUT;
}

static tr_status silent_add(void *user, const char *key, int64_t amount, int64_t *sum)
{
    (void)user, (void)key, (void)amount, (void)sum;
    return TR_IO;
}

static tr_status silent_compare_set(void *user, const char *key, const void *expected, size_t expected_bytes, const void *desired,
    size_t desired_bytes, int timeout_ms, void **value, size_t *bytes)
{
    (void)user, (void)key, (void)expected, (void)expected_bytes, (void)desired, (void)desired_bytes;
    (void)timeout_ms, (void)value, (void)bytes;
    return TR_IO;
}

static tr_status silent_delete(void *user, const char *key, bool *deleted)
{
    (void)user, (void)key, (void)deleted;
    return TR_IO;
}

/* What failed before is not the reason. */
static void a_custom_store_that_does_not_say_why(void **state)
{
    (void)state;
    TR_SCOPE;
    void *value;
    size_t bytes;
    tr_store *silent = tr_store_custom(silent_set, silent_get, silent_add, silent_compare_set, .delete_key = silent_delete);
    const char *io = tr_status_text(TR_IO);
    OK(tr_status_of(silent));
    for (int i = 0; i < 5; i++) {
        FAILS(TR_INVALID, tr_store_set(NULL, "k", "v", 1), "a store is needed");
        switch (i) {
        case 0: FAILS(TR_IO, tr_store_set(silent, "k", "v", 1), io); break;
        case 1: FAILS(TR_TIMEOUT, tr_store_get(silent, "k", &value, &bytes), tr_status_text(TR_TIMEOUT)); break;
        case 2: FAILS(TR_IO, tr_store_add(silent, "k", 1, NULL), io); break;
        case 3: FAILS(TR_IO, tr_store_compare_set(silent, "k", NULL, 0, "v", 1, &value, &bytes), io); break;
        default: FAILS(TR_IO, tr_store_delete(silent, "k", NULL), io);
        }
    }
}

static void custom_store(void **state)
{
    (void)state;
    TR_SCOPE;
    foreign f = {tr_store_memory(), 0};
    {
        TR_SCOPE;
        check_store(tr_store_custom(foreign_set, foreign_get, foreign_add, foreign_compare_set, .user = &f,
            .release = foreign_release, .name = "theirs", .host = "localhost", .token = "secret", .timeout_ms = 20000,
            .delete_key = foreign_delete));
        assert_int_equal(f.released, 0);
    }
    assert_int_equal(f.released, 1);

    void *value;
    size_t bytes;
    tr_store *broken = tr_store_custom(foreign_set, broken_get, foreign_add, foreign_compare_set);
    FAILS(TR_IO, tr_store_get(broken, "k", &value, &bytes), "its link to k is cut");
    FAILS(TR_UNSUPPORTED, tr_store_delete(broken, "k", NULL), "it cannot delete key 'k': it was made without .delete_key");
    FAILS(TR_INTERNAL, tr_store_get(broken, "nothing", &value, &bytes), "gave no value");
    FAILS(TR_INVALID, tr_status_of(tr_store_custom(foreign_set, foreign_get, NULL, foreign_compare_set)), "are needed");
    FAILS(TR_INVALID, tr_status_of(tr_store_custom(foreign_set, foreign_get, foreign_add, foreign_compare_set,
        .timeout_ms = -1)), "must be positive");
}

static void tcp_store(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *server = serve("secret");
    check_store(server);
    tr_store *client = tr_store_tcp("localhost", tr_store_port(server), .token = "secret", .timeout_ms = 20000);
    check_store(tr_store_prefix(client, "again"));
    check_value(client, "a", "\0\xff two", 6);
    tr_store *patient = tr_store_tcp("localhost", tr_store_port(server), .token = "secret", .timeout_ms = INT_MAX);
    check_value(patient, "a", "\0\xff two", 6);
    OK(tr_store_wait(client, "a", INT_MAX));
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static char folder[64], path[80];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/trireme-test-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/store", folder);
    return 0;
}

/* Fails when anything is left there. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void file_store(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *one = tr_store_file(path, .timeout_ms = 20000), *other = tr_store_file(path);
    check_store(one);
    check_value(other, "a", "\0\xff two", 6);
    check_store(tr_store_prefix(other, "again"));
    check_value(one, "again/counter", "-2", 2);
    pthread_t thread;
    setter s = {other, "from the other", 50};
    pthread_create(&thread, NULL, set_later, &s);
    OK(tr_store_wait(one, "from the other", 20000));
    pthread_join(thread, NULL);
    bool deleted;
    OK(tr_store_delete(other, "from the other", &deleted));
    assert_true(deleted);
    FAILS(TR_TIMEOUT, tr_store_wait(one, "from the other", 1), "from the other");
    FAILS(TR_TIMEOUT, tr_store_wait(tr_store_file(path), "from the other", 1), "from the other");
    OK(tr_store_set(other, "before tear", "1", 1));
    check_value(one, "before tear", "1", 1);

    /* Somebody died while writing, and left half a record; nobody reads it, and the next writer cuts it off. */
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "\x09\0\0\0\1\2\3\4\1\0k", 11), 11);
    close(fd);
    check_value(one, "before tear", "1", 1);
    OK(tr_store_set(other, "after tear", "2", 1));
    check_value(one, "after tear", "2", 1);
    TR_SCOPE;
    check_value(tr_store_file(path), "after tear", "2", 1);
}

/* Processes count, and are killed at it: no count that was answered is lost, and none is counted twice. */
static void a_killed_writer_does_no_harm(void **state)
{
    (void)state;
    enum { CHILDREN = 4, KILLS = 12 };
    TR_SCOPE;
    tr_store *store = tr_store_file(path, .timeout_ms = 20000);
    OK(tr_status_of(store));
    int64_t sum, answered[CHILDREN] = {0};
    int pipes[CHILDREN][2];
    pid_t children[CHILDREN];
    for (int trial = 0; trial < KILLS; trial++) {
        int c = trial % CHILDREN;
        if (trial < CHILDREN) assert_int_equal(pipe(pipes[c]), 0);
        children[c] = fork();
        if (children[c] == 0) {
            tr_store *mine = tr_store_file(path, .timeout_ms = 20000);
            for (;;)
                if (tr_store_add(mine, "count", 1, NULL) != TR_OK || write(pipes[c][1], "+", 1) != 1) _exit(1);
        }
        char first;
        if (trial >= CHILDREN) answered[c] += read(pipes[c][0], &first, 1) == 1; /* others may be killed before */
        usleep(5000 + 3000 * (unsigned)trial);
        kill(children[c], SIGKILL);
        waitpid(children[c], NULL, 0);
        OK(tr_store_add(store, "ours", 1, &sum));
        assert_int_equal(sum, trial + 1);
    }
    int64_t all = 0;
    for (int c = 0; c < CHILDREN; c++) {
        char byte;
        close(pipes[c][1]);
        while (read(pipes[c][0], &byte, 1) == 1) answered[c]++;
        close(pipes[c][0]);
        all += answered[c];
    }
    OK(tr_store_add(store, "count", 0, &sum));
    assert_true(all > 0 && sum >= all && sum <= all + KILLS); /* each may have died before it could tell */
}

static void former_jobs_are_forgotten(void **state)
{
    (void)state;
    int status;
    pid_t child = fork(); /* dies with the store open */
    if (child == 0) {
        tr_store *store = tr_store_file(path);
        _exit(tr_store_set(store, "old", "1", 1) == TR_OK ? 7 : 1);
    }
    waitpid(child, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(access(path, F_OK), 0);
    tr_scope_push();
    tr_store *store = tr_store_file(path);
    FAILS(TR_TIMEOUT, tr_store_wait(store, "old", 1), "old");
    OK(tr_store_set(store, "new", "1", 1));
    tr_scope_push();
    check_value(tr_store_file(path), "new", "1", 1);
    tr_scope_pop();
    assert_int_equal(access(path, F_OK), 0);
    tr_scope_pop();
    assert_int_equal(access(path, F_OK), -1);
}

enum { LEAVERS = 4, LIVES = 200 };

typedef struct leavers {
    pthread_barrier_t together;
    atomic_int failed, left_behind;
} leavers;

static void *come_and_go(void *arg)
{
    leavers *l = arg;
    for (int life = 0; life < LIVES; life++) {
        pthread_barrier_wait(&l->together);
        tr_scope_push();
        if (tr_status_of(tr_store_file(path)) != TR_OK) atomic_store(&l->failed, 1);
        pthread_barrier_wait(&l->together);
        tr_scope_pop();
        if (pthread_barrier_wait(&l->together) == PTHREAD_BARRIER_SERIAL_THREAD && access(path, F_OK) == 0)
            atomic_fetch_add(&l->left_behind, 1);
    }
    return NULL;
}

/* All at once: one of them is the last, and knows it. */
static void the_last_to_go_removes_the_file(void **state)
{
    (void)state;
    leavers l = {0};
    pthread_t threads[LEAVERS];
    pthread_barrier_init(&l.together, NULL, LEAVERS);
    for (int i = 0; i < LEAVERS; i++) pthread_create(&threads[i], NULL, come_and_go, &l);
    for (int i = 0; i < LEAVERS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&l.together);
    assert_int_equal(atomic_load(&l.failed), 0);
    assert_int_equal(atomic_load(&l.left_behind), 0);
}

static void other_peoples_files_stay(void **state)
{
    (void)state;
    TR_SCOPE;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "my thesis", 9), 9);
    FAILS(TR_FORMAT, tr_status_of(tr_store_file(path)), "something else");
    assert_int_equal(lseek(fd, 0, SEEK_END), 9);
    assert_int_equal(ftruncate(fd, 0), 0);
    fchmod(fd, 0666);
    FAILS(TR_AUTH, tr_status_of(tr_store_file(path)), "other users");
    close(fd);
    unlink(path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    FAILS(TR_IO, tr_status_of(tr_store_file(path)), "cannot open");
    unlink(path);
    FAILS(TR_INVALID, tr_status_of(tr_store_file("")), "path is needed");
    FAILS(TR_IO, tr_status_of(tr_store_file("/nowhere/at/all")), "/nowhere/at/all");
    FAILS(TR_INVALID, tr_status_of(tr_store_file(folder, .timeout_ms = -1)), "must be positive");
}

static void errors_pass_on(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *bad = tr_store_tcp(NULL, 1);
    FAILS(TR_INVALID, tr_status_of(bad), "host");
    FAILS(TR_INVALID, tr_store_set(bad, "k", "v", 1), "host");
    FAILS(TR_INVALID, tr_status_of(tr_store_prefix(bad, "p")), "host");
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", 70000)), "70000");
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", 0)), "port 0");
    FAILS(TR_INVALID, tr_store_set(NULL, "k", "v", 1), "NULL");
    assert_int_equal(tr_store_port(NULL), 0);
}

/* ---- Who may come, and where it serves --------------------------------------------------------------------------- */

static void tokens_are_checked(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_store *store = serve("secret");
    int port = tr_store_port(store);
    char words[64];
    snprintf(words, sizeof words, "the store 127.0.0.1:%d refused this job's token", port);
    int64_t began = tr__now_ns();
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = "Secret", .timeout_ms = 20000)), words);
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = "secret2", .timeout_ms = 20000)), words);
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 20000)), "wants a token");
    assert_true(tr__now_ns() - began < 20000000000); /* and none of them has waited for its time */
    OK(tr_store_set(store, "k", "v", 1)); /* the server lives on */
    FAILS(TR_FORMAT, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(serve(NULL)), .token = "secret",
        .timeout_ms = 20000)), "or one without a token");
    char long_token[TR__TOKEN_MAX + 2];
    memset(long_token, 'x', sizeof long_token);
    long_token[TR__TOKEN_MAX + 1] = 0;
    FAILS(TR_INVALID, tr_status_of(tr_store_tcp("127.0.0.1", port, .token = long_token)), "256 bytes");
}

static void without_a_token_only_over_loopback(void **state)
{
    (void)state;
    TR_SCOPE;
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true)), "loopback");
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true, .token = "")), "loopback");
    OK(tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true, .token = "t")));
    OK(tr_status_of(tr_store_tcp("0.0.0.0", 0, .serve = true, .insecure = true)));
    FAILS(TR_AUTH, tr_status_of(tr_store_tcp("192.0.2.1", 29500)), "only loopback");
}

static void a_taken_port_is_an_error(void **state)
{
    (void)state;
    TR_SCOPE;
    char port[16];
    tr_store *store = serve(NULL);
    snprintf(port, sizeof port, ":%d", tr_store_port(store));
    FAILS(TR_IO, tr_status_of(tr_store_tcp("127.0.0.1", tr_store_port(store), .serve = true)), port);
}

static void it_takes_over_a_listening_socket(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    tr_store *store = tr_store_tcp("127.0.0.1", port, .serve = true, .listen_fd = fd, .timeout_ms = 20000);
    OK(tr_status_of(store));
    assert_int_equal(tr_store_port(store), port);
    check_basics(tr_store_tcp("127.0.0.1", port));
}

static void nobody_there_is_a_timeout(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    close(fd);
    char name[32];
    snprintf(name, sizeof name, "127.0.0.1:%d", port);
    FAILS(TR_TIMEOUT, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 100)), name);
    /* A name with an empty part is wrong by itself: no name server is asked, which may not be there. */
    FAILS(TR_NOT_FOUND, tr_status_of(tr_store_tcp("no..such.host", 1, .timeout_ms = 100)), "no..such.host");
}

static void *answer_with_words(void *arg)
{
    int fd = accept(*(int *)arg, NULL, NULL);
    char bytes[256];
    ssize_t written = write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    (void)written;
    while (read(fd, bytes, sizeof bytes) > 0) continue;
    close(fd);
    return NULL;
}

static void another_service_is_told_apart(void **state)
{
    (void)state;
    TR_SCOPE;
    int port, fd = listen_on_loopback(&port);
    pthread_t thread;
    pthread_create(&thread, NULL, answer_with_words, &fd);
    FAILS(TR_FORMAT, tr_status_of(tr_store_tcp("127.0.0.1", port, .timeout_ms = 20000)), "no Trireme store");
    pthread_join(thread, NULL);
    close(fd);
}

static void a_server_that_goes_is_an_error(void **state)
{
    (void)state;
    tr_scope_push();
    tr_store *server = serve(NULL), *client;
    int port = tr_store_port(server);
    client = tr_keep(tr_store_tcp("127.0.0.1", port, .timeout_ms = 20000));
    OK(tr_status_of(client));
    tr_scope_pop();
    FAILS(TR_IO, tr_store_set(client, "k", "v", 1), "127.0.0.1");
    FAILS(TR_IO, tr_store_wait(client, "k", 20000), "127.0.0.1");
    tr_release(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_store),
        cmocka_unit_test(custom_store),
        cmocka_unit_test(a_custom_store_that_does_not_say_why),
        cmocka_unit_test(tcp_store),
        cmocka_unit_test_setup_teardown(file_store, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_killed_writer_does_no_harm, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(former_jobs_are_forgotten, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_last_to_go_removes_the_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(other_peoples_files_stay, make_folder, remove_folder),
        cmocka_unit_test(errors_pass_on),
        cmocka_unit_test(tokens_are_checked),
        cmocka_unit_test(without_a_token_only_over_loopback),
        cmocka_unit_test(a_taken_port_is_an_error),
        cmocka_unit_test(it_takes_over_a_listening_socket),
        cmocka_unit_test(nobody_there_is_a_timeout),
        cmocka_unit_test(another_service_is_told_apart),
        cmocka_unit_test(a_server_that_goes_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
