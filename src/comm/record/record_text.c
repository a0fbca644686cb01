/* Flight records as text and as a Chrome trace, and the files that a failed group leaves behind. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/object.h"
#include "comm/record/record.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LATEST = 20 }; /* calls that the text shows */

/* ---- Words ------------------------------------------------------------------------------------------------------- */

char *tr__ranks_text(const int *ranks, int named, int total, char text[TR__RANKS_TEXT])
{
    enum { NAMED = 10 };
    if (named > NAMED) named = NAMED;
    size_t used = (size_t)snprintf(text, TR__RANKS_TEXT, total == 1 ? "rank" : "ranks");
    for (int i = 0; i < named; i++) {
        const char *gap = i == 0 ? " " : i == named - 1 && named == total ? " and " : ", ";
        used += (size_t)snprintf(text + used, TR__RANKS_TEXT - used, "%s%d", gap, ranks[i]);
    }
    if (total > named) snprintf(text + used, TR__RANKS_TEXT - used, " and %d more", total - named);
    return text;
}

/* An agent's group has a name within that of the program's: "world.1-0". */
char *tr__record_group(const tr__record *r, char text[TR__GROUP_TEXT])
{
    const char *end = r->rpc ? strrchr(r->group, '.') : NULL;
    int length = end ? (int)(end - r->group) : (int)strlen(r->group);
    snprintf(text, TR__GROUP_TEXT, "%s '%.*s'", r->rpc ? "rpc of" : "group", length, r->group);
    return text;
}

char *tr__time_text(int64_t ns, char text[TR__TIME_TEXT])
{
    double seconds = ns > 0 ? (double)ns * 1e-9 : 0;
    if (seconds < 600)
        snprintf(text, TR__TIME_TEXT, seconds < 1 ? "%.3f s" : "%.1f s", seconds);
    else
        snprintf(text, TR__TIME_TEXT, "%.0f min", seconds / 60);
    return text;
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

void tr__record_write_state(FILE *file, const tr__record *r, int64_t now)
{
    char call[TR__CALL_TEXT], since[TR__TIME_TEXT];
    const tr__record_call *running = tr__record_running(r), *last = tr__record_last(r);
    if (r->state == TR__RECORD_JOINING)
        fprintf(file, "joining for %s", tr__time_text(now - r->monotonic, since));
    else if (running)
        fprintf(file, "in %s for %s", tr__signature_text(&running->signature, call), tr__time_text(now - running->started, since));
    else if (r->rpc)
        fprintf(file, "waits for no call");
    else if (last)
        fprintf(file, "in no call for %s; its last was %s", tr__time_text(now - last->ended, since),
            tr__signature_text(&last->signature, call));
    else
        fprintf(file, "in no call, and has made none");
}

static void write_now(FILE *file, const tr__record *r, int64_t now)
{
    char since[TR__TIME_TEXT], ranks[TR__RANKS_TEXT], held[TR__HELD_TEXT];
    fputs("  now: ", file);
    tr__record_write_state(file, r, now);
    if (r->waits_total > 0)
        fprintf(file, ", waiting for %s for %s", tr__ranks_text(r->waits, r->waits_count, r->waits_total, ranks),
            tr__time_text(now - r->waits_since, since));
    if (r->held.bytes) fprintf(file, ", waiting for rank %d%s", r->held.rank, tr__held_text(&r->held, held));
    fputc('\n', file);
}

static void write_call(FILE *file, const tr__record_call *c, int64_t now)
{
    char call[TR__CALL_TEXT], took[32] = "", waited[48] = "";
    const char *how = "queued";
    if (c->ended) {
        how = c->status == TR_OK ? "done" : tr_status_name(c->status);
        if (c->started) snprintf(took, sizeof took, "%.1f us", (double)(c->ended - c->started) * 1e-3);
    } else if (c->started) {
        how = "running";
    }
    if (c->started > c->posted)
        snprintf(waited, sizeof waited, "; queued for %.1f us", (double)(c->started - c->posted) * 1e-3);
    fprintf(file, "  %12.6f s  %14s  %-10s  %s%s\n", (double)((c->started ? c->started : c->posted) - now) * 1e-9, took,
        how, tr__signature_text(&c->signature, call), waited);
}

void tr__record_write_text(FILE *file, const tr__record *r, int64_t now)
{
    time_t seconds = (time_t)((r->realtime + now - r->monotonic) / 1000000000);
    struct tm utc;
    char date[32] = "", group[TR__GROUP_TEXT];
    if (gmtime_r(&seconds, &utc)) strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &utc);
    fprintf(file, "Rank %d of %d in %s (%s), process %d on host %s, job %s, %s\n", r->rank, r->world_size,
        tr__record_group(r, group), r->backend, r->pid, r->host, r->job[0] ? r->job : "without a name", date);
    if (r->failed) fprintf(file, "  failed: %s\n", r->failure);
    write_now(file, r, now);
    int first = r->call_count > LATEST ? r->call_count - LATEST : 0;
    if (r->call_count) fprintf(file, "  the latest calls: start, duration, state, call\n");
    for (int i = first; i < r->call_count; i++) write_call(file, &r->calls[i], now);
}

/* ---- Chrome trace ------------------------------------------------------------------------------------------------ */

/* A named event without a duration: ph "M" names tracks. */
static cJSON *add_event(cJSON *events, const char *name, const char *phase, int rank, int track)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "name", name);
    cJSON_AddStringToObject(event, "ph", phase);
    cJSON_AddNumberToObject(event, "pid", rank);
    cJSON_AddNumberToObject(event, "tid", track);
    cJSON_AddItemToArray(events, event);
    return event;
}

static void name_track(cJSON *events, const char *what, const char *name, int rank, int track)
{
    cJSON *event = add_event(events, what, "M", rank, track);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(event, "args"), "name", name);
}

/* On the wall clock, in microseconds: so traces of several hosts fit together. */
static void add_call(cJSON *events, const tr__record *r, const tr__record_call *c, int track, int64_t now)
{
    char text[TR__CALL_TEXT], name[64];
    int64_t begin = c->started ? c->started : c->posted, end = c->ended ? c->ended : now;
    bool remote = (int)c->signature.kind == TR__REMOTE_WAIT;
    int length = snprintf(name, sizeof name, "%s", remote ? c->signature.file : tr__kind_name(c->signature.kind));
    if (c->signature.sequence)
        snprintf(name + length, sizeof name - (size_t)length, " #%llu", (unsigned long long)c->signature.sequence);
    cJSON *event = add_event(events, name, "X", r->rank, track);
    cJSON_AddNumberToObject(event, "ts", (double)(begin - r->monotonic + r->realtime) * 1e-3);
    cJSON_AddNumberToObject(event, "dur", (double)(end > begin ? end - begin : 0) * 1e-3);
    cJSON *args = cJSON_AddObjectToObject(event, "args");
    cJSON_AddStringToObject(args, "call", tr__signature_text(&c->signature, text));
    cJSON_AddNumberToObject(args, "queued_us", c->started ? (double)(c->started - c->posted) * 1e-3 : 0);
    cJSON_AddStringToObject(args, "status", c->ended ? tr_status_name(c->status) : c->started ? "running" : "queued");
    if (c == tr__record_running(r) && r->waits_total > 0) {
        char ranks[TR__RANKS_TEXT];
        cJSON_AddStringToObject(args, "waits_for", tr__ranks_text(r->waits, r->waits_count, r->waits_total, ranks));
    }
}

void tr__record_write_trace(FILE *file, const tr__records *records, int64_t now)
{
    cJSON *root = cJSON_CreateObject(), *events = cJSON_AddArrayToObject(root, "traceEvents");
    for (int i = 0; i < records->count; i++) {
        const tr__record *r = &records->list[i];
        char name[TR__RECORD_NAME + 32];
        snprintf(name, sizeof name, "rank %d (pid %d)", r->rank, r->pid);
        name_track(events, "process_name", name, r->rank, i);
        tr__record_group(r, name);
        name_track(events, "thread_name", name, r->rank, i);
        for (int k = 0; k < r->call_count; k++) add_call(events, r, &r->calls[k], i, now);
    }
    char *text = cJSON_PrintUnformatted(root);
    if (text) fprintf(file, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* DIR/JOB-rankR-GROUP + ending; what file names do not bear becomes an underscore. */
static FILE *open_file(const char *folder, const tr__record_header *failed, const char *ending, char **path)
{
    char name[2 * TR__RECORD_NAME + 32];
    snprintf(name, sizeof name, "%s-rank%d-%s", failed->job[0] ? failed->job : "job", failed->rank, failed->group);
    for (char *c = name; *c; c++)
        if (*c == '/' || *c == ':' || *c == ' ') *c = '_';
    *path = NULL;
    if (asprintf(path, "%s/%s%s", folder, name, ending) < 0) {
        *path = NULL;
        return NULL;
    }
    return fopen(*path, "we");
}

static void write_files(const char *folder, const tr__record_header *failed, const tr__records *records)
{
    TR__FREED char *text_path = NULL, *trace_path = NULL;
    int64_t now = tr__now_ns();
    FILE *text = open_file(folder, failed, ".txt", &text_path), *trace = open_file(folder, failed, ".trace.json", &trace_path);
    for (int i = 0; text && i < records->count; i++) {
        if (i > 0) fputc('\n', text);
        tr__record_write_text(text, &records->list[i], now);
    }
    if (trace) tr__record_write_trace(trace, records, now);
    bool written = text && trace;
    if (text && fclose(text) != 0) written = false;
    if (trace && fclose(trace) != 0) written = false;
    if (written)
        tr__log(TR_LOG_INFO, "group '%s': the latest calls of rank %d are in %s and %s", failed->group, failed->rank,
            text_path, trace_path);
    else
        tr__log(TR_LOG_WARN, "group '%s': cannot write the flight record to %s: %s", failed->group, folder, strerror(errno));
}

void tr__record_dump(const char *folder, const tr__record_header *failed)
{
    TR__KEEP_ERROR;
    tr__records records;
    mkdir(folder, 0777); /* opening the files says when that did not help */
    if (tr__records_read(getpid(), &records) == TR_OK) {
        write_files(folder, failed, &records);
        tr__records_free(&records);
    } else {
        tr__log(TR_LOG_WARN, "group '%s': cannot read the flight record: %s", failed->group, tr_error_message());
    }
}
