/* The worker process's side: makes the dataset, then batches of it as they are asked for. */
#include "data/batch.h"
#include "data/remote_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

typedef struct server {
    const tr__remote_job *job;
    tr__recipe recipe;
    int socket, memory_fd;
    char *memory;
    size_t bytes;
} server;

static const atomic_bool never;

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static tr_status make_dataset(server *s)
{
    tr__any_function function;
    const tr__remote_job *job = s->job;
    TR__TRY(tr__place_function(&job->make, &function));
    tr_dataset *all = ((tr_dataset_make)function)(job->bytes ? job + 1 : NULL, job->bytes);
    tr_dataset *set = tr_dataset_slice(all, job->begin, job->begin + job->count);
    if (all && tr_status_of(all) == TR_OK && all->count != job->whole)
        return tr__fail(TR_INVALID, "it has %" PRId64 " samples of %s, and the program has %" PRId64 ": numbers may stand for "
            "other samples, as where a folder has got a file", all->count, all->name, job->whole);
    TR__TRY(tr_status_of(set));
    s->recipe = (tr__recipe){.set = set, .on_bad = job->on_bad, .choice = job->choice, .stop = &never};
    if (!job->has_collate) return TR_OK;
    TR__TRY(tr__place_function(&job->collate, &function));
    s->recipe.collate = (tr_collate)function;
    return TR_OK;
}

/* ---- Batches ----------------------------------------------------------------------------------------------------- */

/* Makes room for a batch; without memory that is an error here, not a SIGBUS later. */
static tr_status reserve(server *s, size_t bytes)
{
    if (bytes <= s->bytes) return TR_OK;
    if (fallocate(s->memory_fd, 0, 0, (off_t)bytes) != 0)
        return tr__fail_errno(TR_NO_MEMORY, errno, "no memory for a batch of %zu bytes", bytes);
    return tr__remote_map(s->memory_fd, &s->memory, &s->bytes);
}

static tr_status put(server *s, tr__batch_result *batch, tr__remote_answer *answer)
{
    size_t end = tr__remote_data_at(s->job->most);
    for (int f = 0; f < TR__FIELDS; f++) {
        const tr_tensor *t = *tr__field(&batch->made, f);
        if (!t) continue;
        answer->parts[f] = (tr__remote_part){{true, t->shape, t->dtype}, end};
        end = tr__remote_behind(end, tr__layout_bytes(&answer->parts[f].layout));
    }
    TR__TRY(reserve(s, end));
    answer->skips_at = end;
    answer->duplicates = batch->duplicates;
    answer->other_samples = batch->indices != NULL;
    if (batch->indices) memcpy(s->memory, batch->indices, (size_t)s->recipe.count * sizeof *batch->indices);
    for (int f = 0; f < TR__FIELDS; f++) {
        const tr__remote_part *part = &answer->parts[f];
        if (part->layout.present)
            TR__TRY(tr_copy_out(*tr__field(&batch->made, f), s->memory + part->at, tr__layout_bytes(&part->layout)));
    }
    return TR_OK;
}

/* Behind the batch, or, when that failed, where it begins. */
static tr_status put_skips(server *s, const tr__skips *skips, tr__remote_answer *answer)
{
    if (!skips->bytes) return TR_OK;
    TR__TRY(reserve(s, answer->skips_at + skips->bytes));
    answer->skips_bytes = skips->bytes;
    memcpy(s->memory + answer->skips_at, skips->records, skips->bytes);
    return TR_OK;
}

static void answer_one(server *s, const tr__remote_request *request, tr__remote_answer *answer)
{
    tr__batch_result batch = {0};
    /* There may have been no room when the last batch made it grow. */
    tr_status status = s->memory ? TR_OK : tr__remote_map(s->memory_fd, &s->memory, &s->bytes);
    s->recipe.indices = (const int64_t *)s->memory;
    s->recipe.count = request->count;
    s->recipe.once = request->once;
    s->recipe.seed = request->seed;
    if (status == TR_OK) status = tr__batch_make(&s->recipe, &batch);
    if (status == TR_OK) status = put(s, &batch, answer);
    if (status != TR_OK) snprintf(answer->message, sizeof answer->message, "%s", tr_error_message());
    answer->status = status;
    if (put_skips(s, &batch.skips, answer) != TR_OK && status == TR_OK) {
        answer->status = TR_NO_MEMORY;
        snprintf(answer->message, sizeof answer->message, "%s", tr_error_message());
    }
    tr__batch_drop(&batch);
}

static tr_status serve(server *s)
{
    tr__remote_request request;
    for (;;) {
        ssize_t n = recv(s->socket, &request, sizeof request, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n != sizeof request) return TR_OK; /* the loader has gone */
        tr__remote_answer answer = {.status = TR_OK, .skips_at = tr__remote_data_at(s->job->most)};
        answer_one(s, &request, &answer);
        if (send(s->socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) return TR_OK;
    }
}

tr_status tr__remote_serve(int number, void *argument, size_t bytes)
{
    (void)number, (void)bytes;
    const tr__remote_job *job = argument;
    server s = {.job = job, .socket = job->socket, .memory_fd = job->memory_fd};
    fcntl(s.socket, F_SETFD, FD_CLOEXEC);
    fcntl(s.memory_fd, F_SETFD, FD_CLOEXEC);
    TR__TRY(tr__remote_map(s.memory_fd, &s.memory, &s.bytes));
    TR__TRY(make_dataset(&s));
    return serve(&s);
}
