/* tr_cluster_check: one command on each host, all at once; its answer is lines "version X", "cores N", "program". */
#include "cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ANSWER_SECONDS = 30 }; /* for all hosts together */

typedef struct question {
    const tr_cluster_host *host;
    pid_t pid; /* 0: not started, for the reason in answer */
    int fds[2]; /* its stdout and stderr */
    bool late;
    tr_status status;
    char answer[2048], errors[2048]; /* the last of them */
} question;

static tr_status compose(const tr_cluster *c, const char *program, tr__text *text)
{
    char folder[PATH_MAX];
    if (!getcwd(folder, sizeof folder)) return tr_fail(TR_IO, "cluster: this folder has no name: %s", strerror(errno));
    tr__text_add(text, "echo version $(");
    tr__text_quote(text, c->command);
    tr__text_add(text, " --version); echo cores $(nproc)");
    if (program) {
        tr__text_add(text, "; cd");
        tr__text_quote(text, folder);
        tr__text_add(text, " && { command -v");
        tr__text_quote(text, program);
        tr__text_add(text, " >/dev/null");
        size_t length = strlen(program);
        if (length > 3 && !strcmp(program + length - 3, ".py")) { /* the launcher gives it to python3 */
            tr__text_add(text, " || test -f");
            tr__text_quote(text, program);
        }
        tr__text_add(text, "; } && echo program");
    }
    return tr__text_status(text);
}

static tr_status ask(const tr_cluster *c, question *q, const char *command)
{
    const char *argv[TR__SSH_WORDS];
    char *words;
    TRY(tr__ssh_command(c, q->host, command, argv, &words));
    int out[2] = {-1, -1}, err[2] = {-1, -1}, nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool opened = nothing >= 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    tr_status status = TR_OK;
    if (!opened) status = tr_fail(TR_IO, "cluster: cannot open a pipe (see ulimit -n): %s", strerror(errno));
    if (opened) {
        posix_spawn_file_actions_t stdio;
        posix_spawn_file_actions_init(&stdio);
        posix_spawn_file_actions_adddup2(&stdio, nothing, STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&stdio, out[1], STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&stdio, err[1], STDERR_FILENO);
        int error = posix_spawnp(&q->pid, argv[0], &stdio, NULL, (char *const *)argv, environ);
        posix_spawn_file_actions_destroy(&stdio);
        if (error)
            status = tr_fail(error == ENOENT ? TR_NOT_FOUND : TR_IO, "cannot run %s: %s", argv[0], strerror(error));
    }
    q->fds[0] = out[0];
    q->fds[1] = err[0];
    const int done[] = {nothing, out[1], err[1], status ? out[0] : -1, status ? err[0] : -1};
    for (size_t i = 0; i < sizeof done / sizeof *done; i++)
        if (done[i] >= 0) close(done[i]);
    free(words);
    return status;
}

/* Keeps the last of what is said: a login banner may come before it. False at the end. */
static bool hear(int fd, char *text, size_t bytes)
{
    char piece[1024];
    ssize_t got = read(fd, piece, sizeof piece - 1);
    if (got <= 0) return got < 0 && errno == EINTR;
    size_t used = strlen(text), more = (size_t)got;
    for (size_t i = 0; i < more; i++)
        if (!piece[i]) piece[i] = ' ';
    size_t drop = used + more < bytes ? 0 : used + more + 1 - bytes;
    memmove(text, text + drop, used - drop);
    memcpy(text + used - drop, piece, more);
    text[used - drop + more] = '\0';
    return true;
}

/* Until its end; one that has not come to it at the deadline is killed. */
static void read_answer(question *q, int64_t deadline)
{
    struct pollfd fds[] = {{.fd = q->fds[0], .events = POLLIN}, {.fd = q->fds[1], .events = POLLIN}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        int64_t left = (deadline - tr__tools_now_ns()) / 1000000;
        int ready = poll(fds, 2, left > 0 ? (int)left : 0);
        if (ready < 0 && errno == EINTR) continue;
        q->late = ready <= 0;
        if (q->late) break;
        if (fds[0].revents && !hear(fds[0].fd, q->answer, sizeof q->answer)) fds[0].fd = -1;
        if (fds[1].revents && !hear(fds[1].fd, q->errors, sizeof q->errors)) fds[1].fd = -1;
    }
    if (q->late) kill(q->pid, SIGKILL);
    close(q->fds[0]);
    close(q->fds[1]);
}

/* Without what a terminal would not show as one line. */
static const char *last_line(char *text)
{
    size_t n = strlen(text);
    while (n && (unsigned char)text[n - 1] <= ' ') n--;
    text[n] = '\0';
    char *newline = strrchr(text, '\n');
    return newline ? newline + 1 : text;
}

/* The rest of the line that begins so; NULL: there is none. */
static const char *line_of(const char *answer, const char *begin)
{
    for (const char *at = answer; at; at = strchr(at, '\n'), at += at != NULL)
        if (!strncmp(at, begin, strlen(begin))) return at + strlen(begin);
    return NULL;
}

static tr_status judge(const tr_cluster *c, question *q, int how, const char *program, int *cores)
{
    const char *name = q->host->name, *version = line_of(q->answer, "version trireme ");
    const char *count = line_of(q->answer, "cores ");
    if (!count && q->late) return tr_fail(TR_TIMEOUT, "%s does not answer within %d seconds", name, ANSWER_SECONDS);
    if (!count) {
        const char *advice = tr__ssh_advice(q->errors), *said = last_line(q->errors);
        return tr_fail(TR_IO, "%s cannot be reached: %s%s", name, *said ? said : "ssh said nothing", advice);
    }
    *cores = atoi(count);
    size_t length = strlen(tr_version());
    if (!version) return tr_fail(TR_NOT_FOUND, "%s has no command %s: %s", name, c->command, last_line(q->errors));
    if (strncmp(version, tr_version(), length) != 0 || version[length] != '\n')
        return tr_fail(TR_MISMATCH, "%s has Trireme %.*s, this machine %s", name, (int)strcspn(version, "\n"), version,
            tr_version());
    if (program && !line_of(q->answer, "program"))
        return tr_fail(TR_NOT_FOUND, "%s has no program %s in this folder", name, program);
    return how == 0 || program ? TR_OK : tr_fail(TR_IO, "%s: ssh ended with %d", name, how);
}

static tr_status finish(const tr_cluster *c, question *q, const char *program, int64_t deadline, tr_cluster_finding finding,
    void *user)
{
    int how = 0, cores = 0;
    tr_status status = q->status;
    if (status) {
        tr_fail(status, "%s", q->answer);
    } else {
        read_answer(q, deadline);
        while (waitpid(q->pid, &how, 0) < 0 && errno == EINTR) continue;
        status = judge(c, q, WIFEXITED(how) ? WEXITSTATUS(how) : -1, program, &cores);
    }
    if (finding) finding(q->host, status, cores, status ? tr_error_message() : "", user);
    return status;
}

tr_status tr_cluster_check(tr_cluster *c, const char *program, tr_cluster_finding finding, void *user)
{
    TRY(tr__cluster_there(c, "cluster_check"));
    char command[8192];
    tr__text text = {command, 0, sizeof command, false};
    TRY(compose(c, program, &text));
    question *questions = calloc((size_t)c->count, sizeof *questions);
    if (!questions) return tr_fail(TR_NO_MEMORY, "cluster: no memory for %d hosts", c->count);
    int64_t deadline = tr__tools_now_ns() + ANSWER_SECONDS * INT64_C(1000000000);
    for (int i = 0; i < c->count; i++) {
        question *q = &questions[i];
        q->host = &c->hosts[i];
        q->status = ask(c, q, command);
        if (q->status) snprintf(q->answer, sizeof q->answer, "%s", tr_error_message());
    }
    tr_status first = TR_OK;
    char message[1024];
    for (int i = 0; i < c->count; i++) {
        tr_status status = finish(c, &questions[i], program, deadline, finding, user);
        if (!status || first) continue;
        first = status;
        snprintf(message, sizeof message, "%s", tr_error_message());
    }
    free(questions);
    return first ? tr_fail(first, "%s", message) : TR_OK;
}
