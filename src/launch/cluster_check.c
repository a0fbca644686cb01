/* tr_cluster_check: one command on each host, all at once; its answer is lines "version X", "cores N", "program". */
#include "base/process.h"
#include "launch/cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef struct question {
    const tr_cluster_host *host;
    pid_t pid; /* 0: not started, for the reason in answer */
    int fd;
    tr_status status;
    char answer[2048];
} question;

static tr_status compose(const tr_cluster *c, const char *program, tr__text *text)
{
    char folder[PATH_MAX];
    if (!getcwd(folder, sizeof folder)) return tr__fail_errno(TR_IO, errno, "cluster: this folder has no name");
    tr__text_add(text, "echo version $(");
    tr__text_quote(text, c->command);
    tr__text_add(text, " --version); echo cores $(nproc)");
    if (program) {
        tr__text_add(text, "; cd");
        tr__text_quote(text, folder);
        tr__text_add(text, " && command -v");
        tr__text_quote(text, program);
        tr__text_add(text, " >/dev/null && echo program");
    }
    return tr__text_status(text);
}

static tr_status ask(const tr_cluster *c, question *q, const char *command)
{
    const char *argv[TR__SSH_WORDS];
    char *words;
    int ends[2], nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    TR__TRY(tr__ssh_command(c, q->host, command, argv, &words));
    tr_status status = nothing < 0 || pipe2(ends, O_CLOEXEC) < 0
        ? tr__fail_errno(TR_IO, errno, "cluster: cannot open a pipe (see ulimit -n)") : TR_OK;
    if (status == TR_OK) {
        const tr__process_options o = {.file = argv[0], .argv = argv, .env = environ,
            .stdio = (int[]){nothing, ends[1], ends[1]}};
        status = tr__process_start(&o, &q->pid);
        close(ends[1]);
        q->fd = ends[0];
        if (status) close(ends[0]);
    }
    if (nothing >= 0) close(nothing);
    free(words);
    return status;
}

static void read_answer(question *q)
{
    size_t used = 0;
    ssize_t got;
    char rest[256];
    while (used + 1 < sizeof q->answer &&
        ((got = read(q->fd, q->answer + used, sizeof q->answer - 1 - used)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) used += (size_t)got;
    while ((got = read(q->fd, rest, sizeof rest)) > 0 || (got < 0 && errno == EINTR)) continue;
    q->answer[used] = '\0';
    close(q->fd);
}

/* The rest of the line that begins so; NULL: there is none. */
static const char *line_of(const char *answer, const char *begin)
{
    for (const char *at = answer; at; at = strchr(at, '\n'), at += at != NULL)
        if (!strncmp(at, begin, strlen(begin))) return at + strlen(begin);
    return NULL;
}

static tr_status judge(const question *q, int how, const char *program, int *cores)
{
    const char *name = q->host->name, *version = line_of(q->answer, "version trireme ");
    const char *count = line_of(q->answer, "cores ");
    if (!count) {
        size_t length = strcspn(q->answer, "\r\n");
        return tr__fail(TR_IO, "%s cannot be reached: %.*s%s", name, (int)length,
            length ? q->answer : "ssh said nothing", tr__ssh_advice(q->answer));
    }
    *cores = atoi(count);
    size_t length = strlen(tr_version());
    if (!version) return tr__fail(TR_NOT_FOUND, "%s has no command trireme: %.*s", name, (int)strcspn(q->answer, "\n"), q->answer);
    if (strncmp(version, tr_version(), length) != 0 || version[length] != '\n')
        return tr__fail(TR_MISMATCH, "%s has Trireme %.*s, this machine %s", name, (int)strcspn(version, "\n"), version,
            tr_version());
    if (program && !line_of(q->answer, "program"))
        return tr__fail(TR_NOT_FOUND, "%s has no program %s in this folder", name, program);
    return how == 0 || program ? TR_OK : tr__fail(TR_IO, "%s: ssh ended with %d", name, how);
}

static tr_status finish(question *q, const char *program, tr_cluster_finding finding, void *user)
{
    int how = 0, cores = 0;
    tr_status status = q->status;
    if (status) {
        tr__fail(status, "%s", q->answer);
    } else {
        read_answer(q);
        while (waitpid(q->pid, &how, 0) < 0 && errno == EINTR) continue;
        status = judge(q, WIFEXITED(how) ? WEXITSTATUS(how) : -1, program, &cores);
    }
    if (finding) finding(q->host, status, cores, status ? tr_error_message() : "", user);
    return status;
}

tr_status tr_cluster_check(tr_cluster *c, const char *program, tr_cluster_finding finding, void *user)
{
    TR__TRY(tr_status_of(c));
    char command[8192];
    tr__text text = {command, 0, sizeof command, false};
    TR__TRY(compose(c, program, &text));
    question *questions = calloc((size_t)c->count, sizeof *questions);
    if (!questions) return tr__fail(TR_NO_MEMORY, "cluster: no memory for %d hosts", c->count);
    for (int i = 0; i < c->count; i++) {
        question *q = &questions[i];
        q->host = &c->hosts[i];
        q->status = ask(c, q, command);
        if (q->status) snprintf(q->answer, sizeof q->answer, "%s", tr_error_message());
    }
    tr__error *first = NULL;
    for (int i = 0; i < c->count; i++)
        if (finish(&questions[i], program, finding, user) && !first) first = tr__error_take();
    free(questions);
    tr_status status = tr__fail_stored(first);
    tr__error_unref(first);
    return status;
}
