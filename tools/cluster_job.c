/* What is remembered of a job in the state folder, so that other processes can look at it and stop it. */
#include "cluster.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STOP_MS = 30000, LOOK_MS = 50 };

static bool name_file(char path[PATH_MAX], const char *folder, const char *name)
{
    int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return n > 0 && n < PATH_MAX;
}

/* text is "" if there is no such file. */
static void read_text(const char *folder, const char *name, char *text, size_t bytes)
{
    char path[PATH_MAX];
    FILE *f = name_file(path, folder, name) ? fopen(path, "re") : NULL;
    size_t n = f ? fread(text, 1, bytes - 1, f) : 0;
    text[n] = '\0';
    if (f) fclose(f);
}

/* When a process was started, in the kernel's ticks: a later one with its number differs. 0: there is none. */
static unsigned long long birth_of(int pid)
{
    char folder[64], text[1024];
    snprintf(folder, sizeof folder, "/proc/%d", pid);
    read_text(folder, "stat", text, sizeof text);
    const char *at = strrchr(text, ')'); /* the name before it may hold anything; then 19 fields, and this one */
    if (!at || strspn(at, ") ZXx") > 2) return 0; /* gone, or dead and not reaped */
    for (int i = 0; i < 20 && at; i++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* Makes a folder, readable by its owner alone, and those that lead to it. */
static tr_status make_folder(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, i < length ? 0777 : 0700) < 0 && errno != EEXIST)
            return tr_fail(TR_IO, "cannot make the folder %s: %s", part, strerror(errno));
    }
    return TR_OK;
}

/* ---- Of a job that this process runs --------------------------------------------------------------------------------- */

static tr_status write_job(const tr_cluster *c, const tr__job_files *files, int ranks, const char *const *argv)
{
    char path[PATH_MAX];
    FILE *f = name_file(path, files->folder, "job") ? fopen(path, "we") : NULL;
    if (!f) return tr_fail(TR_IO, "cluster: cannot write %s: %s", files->folder, strerror(errno));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(f, "trireme-job 1 pid %d born %llu hosts %d ranks %d started %lld program", (int)getpid(), birth_of(getpid()),
        c->count, ranks, (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    for (int i = 0; argv[i]; i++) fprintf(f, " %s", argv[i]);
    return fclose(f) == 0 ? TR_OK : tr_fail(TR_IO, "cluster: cannot write %s: %s", path, strerror(errno));
}

tr_status tr__job_begin(const tr_cluster *c, const char *name, int ranks, const char *const *argv, tr__job_files *files)
{
    char path[PATH_MAX];
    tr_cluster_job before;
    if (!*name || strlen(name) > TR_LAUNCH_JOB_NAME || strpbrk(name, "/ \t\n") || *name == '.')
        return tr_fail(TR_INVALID, "cluster: a job's name has 1 … %d bytes and no slash or blank, and no point at its begin",
            TR_LAUNCH_JOB_NAME);
    if (tr_cluster_status((tr_cluster *)c, name, &before) == TR_OK && before.running)
        return tr_fail(TR_STATE, "cluster: a job %s is running, of process %d", name, before.pid);
    if (!name_file(files->folder, c->state, name)) return tr_fail(TR_INVALID, "cluster: the state folder's name is too long");
    TRY(make_folder(files->folder));
    if (name_file(path, files->folder, "end")) unlink(path);
    TRY(write_job(c, files, ranks, argv));
    files->log = name_file(path, files->folder, "log") ? fopen(path, "we") : NULL;
    return files->log ? TR_OK : tr_fail(TR_IO, "cluster: cannot write into %s: %s", files->folder, strerror(errno));
}

void tr__job_end(tr__job_files *files, const char *text)
{
    char path[PATH_MAX], ready[PATH_MAX];
    fclose(files->log);
    bool named = name_file(path, files->folder, "end.new") && name_file(ready, files->folder, "end");
    FILE *f = named ? fopen(path, "we") : NULL;
    if (!f) return; /* who looks sees that the process is gone */
    fputs(text, f);
    if (fclose(f) == 0) rename(path, ready);
}

/* ---- Of any ---------------------------------------------------------------------------------------------------------- */

static bool read_job(const char *folder, tr_cluster_job *job)
{
    char text[512], path[PATH_MAX];
    unsigned long long born;
    long long started;
    int used = 0;
    read_text(folder, "job", text, sizeof text);
    if (sscanf(text, "trireme-job 1 pid %d born %llu hosts %d ranks %d started %lld program %n", &job->pid, &born,
            &job->hosts, &job->ranks, &started, &used) != 5 || !used)
        return false;
    job->started_ms = started;
    snprintf(job->program, sizeof job->program, "%s", text + used);
    bool ended = name_file(path, folder, "end") && access(path, F_OK) == 0;
    job->running = !ended && born && birth_of(job->pid) == born;
    if (!job->running) read_text(folder, "end", job->text, sizeof job->text);
    if (!job->running && !ended) snprintf(job->text, sizeof job->text, "process %d, to which it was bound, was killed", job->pid);
    return true;
}

/* The job that was started last. */
static bool find_latest(const tr_cluster *c, tr_cluster_job *out)
{
    char folder[PATH_MAX];
    DIR *d = opendir(c->state);
    struct dirent *entry;
    bool found = false;
    while (d && (entry = readdir(d))) {
        tr_cluster_job job = {0};
        if (*entry->d_name == '.' || strlen(entry->d_name) > TR_LAUNCH_JOB_NAME || !name_file(folder, c->state, entry->d_name))
            continue;
        strcpy(job.name, entry->d_name);
        if (!read_job(folder, &job) || (found && job.started_ms < out->started_ms)) continue;
        *out = job;
        found = true;
    }
    if (d) closedir(d);
    return found;
}

tr_status tr_cluster_status(tr_cluster *c, const char *name, tr_cluster_job *out)
{
    TRY(tr__cluster_there(c, "cluster_status"));
    if (!out) return tr_fail(TR_INVALID, "cluster_status: out is NULL");
    char folder[PATH_MAX];
    tr_cluster_job job = {0}; /* name may be that of *out */
    if (name) snprintf(job.name, sizeof job.name, "%s", name);
    *out = job;
    if (!name) return find_latest(c, out) ? TR_OK : tr_fail(TR_NOT_FOUND, "cluster: no job is known in %s", c->state);
    bool sound = *job.name && !strchr(job.name, '/') && *job.name != '.';
    if (sound && name_file(folder, c->state, job.name) && read_job(folder, out)) return TR_OK;
    return tr_fail(TR_NOT_FOUND, "cluster: no job %s is known in %s", job.name, c->state);
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* "[3] a line" is rank 3's; others are the launchers'. */
static void give_lines(FILE *log, tr_launch_output output, void *user, char **line, size_t *capacity)
{
    ssize_t length;
    long begin = ftell(log);
    while ((length = getline(line, capacity, log)) > 0 && (*line)[length - 1] == '\n') {
        int rank = -1;
        sscanf(*line, "[%d]", &rank);
        output(rank, false, *line, (size_t)length - 1, user);
        begin = ftell(log);
    }
    clearerr(log);
    fseek(log, begin, SEEK_SET); /* the rest of an unfinished line comes later */
}

tr_status tr_cluster_logs(tr_cluster *c, const char *name, bool follow, tr_launch_output output, void *user)
{
    tr_cluster_job job;
    TRY(tr__cluster_there(c, "cluster_logs"));
    if (!output) return tr_fail(TR_INVALID, "cluster_logs: the function is NULL");
    TRY(tr_cluster_status(c, name, &job));
    char folder[PATH_MAX], path[PATH_MAX], *line = NULL;
    size_t capacity = 0;
    FILE *log = name_file(folder, c->state, job.name) && name_file(path, folder, "log") ? fopen(path, "re") : NULL;
    if (!log) return tr_fail(TR_IO, "cluster: cannot read the log of job %s: %s", job.name, strerror(errno));
    tr_status status = TR_OK;
    for (bool last = !follow;; pause_ms(LOOK_MS)) {
        give_lines(log, output, user, &line, &capacity);
        if (last) break;
        status = tr_cluster_status(c, job.name, &job);
        last = status || !job.running; /* and then once more */
    }
    free(line);
    fclose(log);
    return status;
}

/* Until the job has ended; false: it has not in that time. */
static bool await_end(tr_cluster *c, const char *name, int timeout_ms)
{
    int64_t deadline = tr__tools_now_ns() + (int64_t)timeout_ms * 1000000;
    tr_cluster_job job;
    while (tr_cluster_status(c, name, &job) == TR_OK && job.running) {
        if (tr__tools_now_ns() > deadline) return false;
        pause_ms(LOOK_MS);
    }
    return true;
}

tr_status tr_cluster_stop(tr_cluster *c, const char *name, int timeout_ms)
{
    tr_cluster_job job;
    TRY(tr__cluster_there(c, "cluster_stop"));
    TRY(tr_cluster_status(c, name, &job));
    if (!job.running) return TR_OK;
    kill(job.pid, SIGTERM);
    if (await_end(c, job.name, timeout_ms ? timeout_ms : STOP_MS)) return TR_OK;
    kill(job.pid, SIGTERM); /* a second one kills the ranks */
    if (await_end(c, job.name, STOP_MS)) return TR_OK;
    kill(job.pid, SIGKILL); /* and the launchers end by themselves, when they see that */
    if (await_end(c, job.name, STOP_MS)) return TR_OK;
    return tr_fail(TR_TIMEOUT, "cluster: job %s does not end, and process %d, to which it is bound, cannot be killed", job.name,
        job.pid);
}
