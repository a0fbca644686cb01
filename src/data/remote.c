/* The loader's side of a worker process. */
#include "data/remote.h"

#include "data/remote_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_MS = 1000 };

tr_status tr__remote_check(const tr__recipe *recipe)
{
    if (!recipe->set->source)
        return tr__fail(TR_INVALID,
            "loader: another process cannot make %s: with .processes give a tr_dataset_from(), a dataset of files, or a "
            "slice of one", recipe->set->name);
    if (recipe->collate && recipe->user)
        return tr__fail(TR_INVALID, "loader: with .processes a .collate has no .user, which is of this process");
    return TR_OK;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

tr_status tr__remote_map(int fd, char **memory, size_t *bytes)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return tr__fail_errno(TR_IO, errno, "cannot look at the memory for batches");
    if (*memory && *bytes == (size_t)info.st_size) return TR_OK;
    if (*memory) munmap(*memory, *bytes);
    *memory = NULL;
    *bytes = 0;
    void *mapped = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return tr__fail_errno(TR_NO_MEMORY, errno, "cannot map %lld bytes, the memory for batches", (long long)info.st_size);
    *memory = mapped;
    *bytes = (size_t)info.st_size;
    return TR_OK;
}

/* As large as a batch will be, where that is known. */
static tr_status make_memory(tr__remote *r, const tr__recipe *recipe, int64_t most)
{
    const tr_dataset *set = recipe->set;
    size_t bytes = tr__remote_data_at(most);
    for (int f = 0; f < TR__FIELDS && !recipe->collate; f++)
        if (set->fields[f].present) bytes = tr__remote_behind(bytes, (size_t)most * tr__layout_bytes(&set->fields[f]));
    r->memory_fd = memfd_create("trireme-loader", MFD_CLOEXEC);
    if (r->memory_fd < 0) return tr__fail_errno(TR_IO, errno, "cannot make a memfd (see ulimit -n)");
    if (fallocate(r->memory_fd, 0, 0, (off_t)bytes) != 0)
        return tr__fail_errno(TR_NO_MEMORY, errno, "no memory for a batch of %zu bytes", bytes);
    return tr__remote_map(r->memory_fd, &r->memory, &r->bytes);
}

static tr_status make_call(tr__remote *r, const tr__recipe *recipe, int64_t most, int socket)
{
    const tr__source *source = recipe->set->source;
    size_t bytes = sizeof(tr__remote_job) + source->bytes;
    tr__remote_job *job = calloc(1, bytes);
    if (!job) return tr__fail(TR_NO_MEMORY, "out of memory");
    *job = (tr__remote_job){.whole = source->count, .begin = recipe->set->source_begin, .count = recipe->set->count,
        .most = most, .socket = socket, .memory_fd = r->memory_fd, .has_collate = recipe->collate != NULL, .on_bad = recipe->on_bad,
        .choice = recipe->choice, .bytes = source->bytes};
    if (source->bytes) memcpy(job + 1, source->argument, source->bytes);
    tr_status status = tr__place_of((tr__any_function)source->make, &job->make);
    if (status == TR_OK && recipe->collate) status = tr__place_of((tr__any_function)recipe->collate, &job->collate);
    if (status == TR_OK) status = tr__call_make(&r->call, tr__remote_serve, job, bytes, 1);
    free(job);
    return status;
}

static void free_memory(tr__remote *r)
{
    if (r->memory) munmap(r->memory, r->bytes);
    if (r->memory_fd >= 0) close(r->memory_fd);
    r->memory = NULL;
    r->bytes = 0;
}

static tr_status start_at(tr__remote *r, const tr__recipe *recipe, int64_t most, int socket)
{
    TR__TRY(make_memory(r, recipe, most));
    TR__TRY(make_call(r, recipe, most, socket));
    tr_status status = tr__call_start(&r->call, 0, (const int[]){socket, r->memory_fd}, &r->pid);
    if (status != TR_OK) tr__call_free(&r->call);
    return status;
}

static tr_status start(tr__remote *r, const tr__recipe *recipe, int64_t most)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return tr__fail_errno(TR_IO, errno, "cannot make a socket (see ulimit -n)");
    *r = (tr__remote){.socket = ends[0], .memory_fd = -1};
    tr_status status = start_at(r, recipe, most, ends[1]);
    close(ends[1]);
    r->running = status == TR_OK;
    if (r->running) r->pidfd = pidfd_open(r->pid, 0);
    if (r->running) return TR_OK;
    close(r->socket);
    free_memory(r);
    return status;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Takes the process's exit status, and gives all but the call back. */
static int reap(tr__remote *r)
{
    int status = 0;
    while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR) continue;
    close(r->socket);
    if (r->pidfd >= 0) close(r->pidfd);
    free_memory(r);
    r->running = false;
    return status;
}

void tr__remote_end(tr__remote *r)
{
    if (!r->running) return;
    shutdown(r->socket, SHUT_WR); /* it reads an end of file, and ends; then so do we */
    struct pollfd end = {.fd = r->socket, .events = POLLIN};
    char rest[sizeof(tr__remote_answer)];
    while (poll(&end, 1, GRACE_MS) > 0 && recv(r->socket, rest, sizeof rest, 0) > 0) continue;
    if (!(end.revents & POLLHUP)) kill(r->pid, SIGKILL);
    reap(r);
    tr__call_free(&r->call);
}

/* "samples 4, 7, 1, … (32 of them)" */
static void list_samples(const tr__recipe *recipe, char *text, size_t bytes)
{
    int at = snprintf(text, bytes, "sample%s", recipe->count == 1 ? "" : "s");
    int64_t shown = recipe->count < 8 ? recipe->count : 8;
    for (int64_t i = 0; i < shown && (size_t)at < bytes; i++)
        at += snprintf(text + at, bytes - (size_t)at, "%s %" PRId64, i ? "," : "", recipe->indices[i]);
    if (shown < recipe->count && (size_t)at < bytes)
        snprintf(text + at, bytes - (size_t)at, ", … (%" PRId64 " of them)", recipe->count);
}

/* The failure of a process that died at a recipe. */
static tr_status died(tr__remote *r, const tr__recipe *recipe)
{
    char samples[256];
    list_samples(recipe, samples, sizeof samples);
    pid_t pid = r->pid;
    int exit_status = reap(r);
    tr_status status;
    if (WIFSIGNALED(exit_status))
        status = tr__fail(TR_CHILD, "worker process %d was killed by signal %d (%s) while it made %s of %s", (int)pid,
            WTERMSIG(exit_status), strsignal(WTERMSIG(exit_status)), samples, recipe->set->name);
    else if (tr__call_progress_of(&r->call, 0) == TR__CALL_RUNNING)
        status = tr__fail(TR_CHILD, "worker process %d exited with %d while it made %s of %s", (int)pid,
            WEXITSTATUS(exit_status), samples, recipe->set->name);
    else
        status = tr__fail_context(tr__call_result(&r->call, 0), "worker process %d, to make %s", (int)pid, samples);
    tr__call_free(&r->call);
    return status;
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* TR_END: the process has died. What it has forked may hold its end of the socket, so that the end of the file does not come. */
static tr_status receive(const tr__remote *r, int wake, tr__remote_answer *answer)
{
    struct pollfd ends[] = {{.fd = r->socket, .events = POLLIN}, {.fd = wake, .events = POLLIN}, {.fd = r->pidfd, .events = POLLIN}};
    while (poll(ends, 3, -1) < 0)
        if (errno != EINTR) return tr__fail_errno(TR_IO, errno, "cannot wait for a worker process");
    if (!ends[0].revents) return ends[2].revents ? TR_END : tr__fail(TR_CANCELLED, "the batch was given up");
    return recv(r->socket, answer, sizeof *answer, 0) == sizeof *answer ? TR_OK : TR_END;
}

static tr_status take_part(const tr__remote *r, const tr__remote_part *part, tr_device device, tr_tensor **out)
{
    if (!part->layout.present) return TR_OK;
    tr_tensor *t = tr__tensor_new(part->layout.shape, part->layout.dtype, device.kind == TR_CPU ? device : tr_cpu(0));
    TR__TRY(tr_status_of(t));
    size_t bytes = tr__layout_bytes(&part->layout);
    if (part->at > r->bytes || bytes > r->bytes - part->at)
        return tr__fail(TR_INTERNAL, "a worker process says that its batch lies outside of its memory");
    memcpy(tr__ptr(t), r->memory + part->at, bytes);
    *out = t;
    return TR_OK;
}

/* What was skipped, and which samples came instead. */
static tr_status take_skips(const tr__remote *r, const tr__remote_answer *answer, const tr__recipe *recipe,
    tr__batch_result *batch)
{
    if (answer->skips_at > r->bytes || answer->skips_bytes > r->bytes - answer->skips_at)
        return tr__fail(TR_INTERNAL, "a worker process says that its notes lie outside of its memory");
    TR__TRY(tr__skips_copy(&batch->skips, r->memory + answer->skips_at, answer->skips_bytes));
    batch->duplicates = answer->duplicates;
    if (!answer->other_samples) return TR_OK;
    size_t bytes = (size_t)recipe->count * sizeof *batch->indices;
    batch->indices = malloc(bytes);
    if (!batch->indices) return tr__fail(TR_NO_MEMORY, "no memory for %" PRId64 " numbers of samples", recipe->count);
    memcpy(batch->indices, r->memory, bytes);
    return TR_OK;
}

static tr_status take(tr__remote *r, const tr__remote_answer *answer, const tr__recipe *recipe, tr__batch_result *batch)
{
    TR_SCOPE;
    tr_sample taken = {0};
    TR__TRY(tr__remote_map(r->memory_fd, &r->memory, &r->bytes));
    TR__TRY(take_skips(r, answer, recipe, batch));
    if (answer->status != TR_OK) return tr__fail(answer->status, "%s", answer->message);
    for (int f = 0; f < TR__FIELDS; f++) TR__TRY(take_part(r, &answer->parts[f], recipe->device, tr__field(&taken, f)));
    return tr__batch_keep(&taken, recipe->device, &batch->made);
}

tr_status tr__remote_make(tr__remote *r, const tr__recipe *recipe, int64_t most, int wake, tr__batch_result *batch)
{
    *batch = (tr__batch_result){0};
    if (!r->running) TR__TRY(start(r, recipe, most));
    /* There may have been no room when the last batch made it grow. */
    if (!r->memory) TR__TRY(tr__remote_map(r->memory_fd, &r->memory, &r->bytes));
    if (recipe->begun) atomic_fetch_add_explicit(recipe->begun, 1, memory_order_relaxed);
    memcpy(r->memory, recipe->indices, (size_t)recipe->count * sizeof *recipe->indices);
    tr__remote_request request = {.seed = recipe->seed, .count = recipe->count, .once = recipe->once};
    if (send(r->socket, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) return died(r, recipe);
    tr__remote_answer answer;
    tr_status status = receive(r, wake, &answer);
    if (status == TR_END) return died(r, recipe);
    if (status == TR_CANCELLED) tr__remote_end(r); /* else the batch would come as the answer to the next request */
    return status == TR_OK ? take(r, &answer, recipe, batch) : status;
}
