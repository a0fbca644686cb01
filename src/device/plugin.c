#include "device/plugin.h"

#include "base/log.h"
#include "base/object.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 32 }; /* plug-ins that are looked for */

/* A plug-in that was looked for. */
typedef struct attempt {
    char kind[TR__KIND_NAME]; /* "": not known */
    char *path;
    tr__error *error;         /* why it is left out; NULL: it is there */
} attempt;

/* Process-wide: which plug-ins were looked for. Made at the first question about a device that is not the CPU's. */
static struct {
    pthread_mutex_t lock;
    bool listed; /* those of TRIREME_PLUGINS have been opened */
    attempt attempts[MOST];
    int count;
} plugins = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void log_message(tr_log_level level, const char *message)
{
    tr__log(level, "%s", message);
}

static const tr_device_host host = {
    .size = sizeof host,
    .fail = tr_fail,
    .log = log_message,
    .dtype_size = tr_dtype_size,
    .dtype_name = tr_dtype_name,
};

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* The functions that every table has, by name. */
#define REQUIRED(X)                                                                                               \
    X(count) X(properties) X(allocate) X(release) X(memory) X(stream_new) X(stream_free) X(stream_synchronize)    \
    X(event_new) X(event_free) X(event_record) X(stream_wait) X(event_done) X(event_synchronize) X(synchronize)   \
    X(copy_in) X(copy_out) X(copy_within) X(copy_peer) X(set_bytes)

/* A copy that is as long as the table of today, for one that may end before. Never freed: tables stay. */
static tr_status check_table(const tr_device_table *given, const char *path, tr_device_table **out)
{
    if (given->version != TR_DEVICE_INTERFACE)
        return tr__fail(TR_DEVICE, "the plug-in %s has version %u of the device interface, and this library takes version %d: "
            "build the plug-in against this Trireme", path, given->version, TR_DEVICE_INTERFACE);
    if (given->size < offsetof(tr_device_table, n_kernels) + sizeof given->n_kernels)
        return tr__fail(TR_DEVICE, "the plug-in %s has a device table of %zu bytes, shorter than version %d ever was (%zu)", path,
            given->size, TR_DEVICE_INTERFACE, sizeof *given);
    if (!given->kind) return tr__fail(TR_DEVICE, "the plug-in %s does not say what its devices are called", path);
#define CHECK(name) \
    if (!given->name) return tr__fail(TR_DEVICE, "the plug-in %s (%s) has no function " #name "()", path, given->kind);
    REQUIRED(CHECK)
#undef CHECK
    tr_device_table *table = calloc(1, sizeof *table);
    if (!table) return tr__fail(TR_NO_MEMORY, "out of memory");
    memcpy(table, given, given->size < sizeof *table ? given->size : sizeof *table);
    *out = table;
    bool graphs = table->capture_end && table->graph_set && table->graph_launch && table->graph_free;
    if (!table->capture_begin || graphs) return TR_OK;
    free(table);
    return tr__fail(TR_DEVICE, "the plug-in %s (%s) has capture_begin(), but not all of capture_end(), graph_set(), graph_launch() "
        "and graph_free()", path, given->kind);
}

static tr_status start(const tr_device_table *given, const char *path)
{
    tr_device_table *table = NULL;
    TR__TRY(check_table(given, path, &table));
    uint64_t failures = tr__failures();
    tr_status status = table->open ? table->open(&host) : TR_OK;
    if (status != TR_OK) status = tr__fail_context(tr__fail_unsaid(status, failures), "%s (%s)", table->kind, path);
    if (status == TR_OK) status = tr__kind_bring(table);
    if (status != TR_OK) free(table);
    return status;
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

static tr_status open_object(attempt *a)
{
    void *object = dlopen(a->path, RTLD_NOW | RTLD_LOCAL);
    if (!object) return tr__fail(TR_DEVICE, "the plug-in %s cannot be opened: %s", a->path, dlerror());
    const tr_device_table *table = dlsym(object, "tr_device_plugin");
    if (!table)
        return tr__fail(TR_DEVICE, "%s is no plug-in for devices: it has no symbol tr_device_plugin", a->path);
    if (table->version == TR_DEVICE_INTERFACE && table->kind) snprintf(a->kind, sizeof a->kind, "%s", table->kind);
    return start(table, a->path);
}

static void try_path(const char *path, size_t length, const char *kind)
{
    if (plugins.count == MOST || length == 0) return;
    attempt *a = &plugins.attempts[plugins.count++];
    snprintf(a->kind, sizeof a->kind, "%s", kind);
    a->path = strndup(path, length);
    tr_status status = a->path ? open_object(a) : tr__fail(TR_NO_MEMORY, "out of memory");
    if (status != TR_OK) a->error = tr__error_take();
}

static void try_listed(void)
{
    plugins.listed = true;
    const char *list = secure_getenv("TRIREME_PLUGINS");
    for (const char *at = list; at && *at;) {
        size_t n = strcspn(at, ":");
        try_path(at, n, "");
        at += n + (at[n] == ':');
    }
}

/* FOLDER/libtrireme-KIND.so, where FOLDER is the library's, or the program's that holds it; false: not known. */
static bool path_beside(const char *kind, char path[PATH_MAX])
{
    Dl_info here;
    if (!dladdr((const void *)&host, &here) || !here.dli_fname) return false;
    char *resolved = realpath(here.dli_fname, NULL);
    if (!resolved) return false;
    char *slash = strrchr(resolved, '/');
    int n = slash ? snprintf(path, PATH_MAX, "%.*s/libtrireme-%s.so", (int)(slash - resolved), resolved, kind) : 0;
    free(resolved);
    return n > 0 && n < PATH_MAX;
}

static bool is_known(const char *kind)
{
    for (int i = 0; i < plugins.count; i++)
        if (strcmp(plugins.attempts[i].kind, kind) == 0) return true;
    return false;
}

void tr__plugin_find(const char *kind)
{
    char path[PATH_MAX];
    pthread_mutex_lock(&plugins.lock);
    if (!plugins.listed) try_listed();
    if (!is_known(kind) && path_beside(kind, path) && access(path, F_OK) == 0) try_path(path, strlen(path), kind);
    pthread_mutex_unlock(&plugins.lock);
}

tr_status tr__plugin_missing(const char *kind, const char *device)
{
    tr__error *why = NULL;
    pthread_mutex_lock(&plugins.lock);
    for (int i = 0; i < plugins.count; i++) {
        const attempt *a = &plugins.attempts[i];
        bool its = strcmp(a->kind, kind) == 0;
        if (a->error && (its || (!*a->kind && !why))) why = a->error;
        if (a->error && its) break;
    }
    pthread_mutex_unlock(&plugins.lock); /* errors stay where they are */
    if (why) {
        (void)tr__fail_stored(why);
        return tr__fail_context(TR_DEVICE, "there is no device %s", device);
    }
    char path[PATH_MAX] = "";
    (void)path_beside(kind, path);
    return tr__fail(TR_DEVICE, "there is no device %s: this process has no %s devices: TRIREME_PLUGINS lists no plug-in that "
        "brings them, and there is no %s", device, kind, path);
}
