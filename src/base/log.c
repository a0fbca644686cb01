#define _GNU_SOURCE
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Process-wide: where messages go. */
static struct {
    pthread_rwlock_t lock;
    tr_log_function function;
    void *user;
    tr_log_level level;
} sink = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* ---- What the environment asks for ------------------------------------------------------------------------------- */

static const char *const levels[] = {[TR_LOG_OFF] = "off", [TR_LOG_ERROR] = "error", [TR_LOG_WARN] = "warn",
    [TR_LOG_INFO] = "info", [TR_LOG_DEBUG] = "debug"};

static void write_to_stderr(tr_log_level level, const char *message, void *user)
{
    (void)user;
    fprintf(stderr, "trireme: %s: %s\n", levels[level], message);
}

/* Runs once, before the first message and before a program's own log function. */
static void read_environment(void)
{
    const char *text = getenv("TRIREME_LOG");
    if (!text || !*text) return;
    int level = TR_LOG_DEBUG;
    while (level >= 0 && strcmp(text, levels[level]) != 0) level--;
    sink.function = write_to_stderr;
    sink.level = level < 0 ? TR_LOG_WARN : (tr_log_level)level;
    if (level >= 0) return;
    char message[160];
    snprintf(message, sizeof message, "TRIREME_LOG=%.60s: it is off, error, warn, info or debug; warn is assumed", text);
    write_to_stderr(TR_LOG_WARN, tr_printable(message), NULL);
}

static pthread_once_t environment_read = PTHREAD_ONCE_INIT;

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

void tr_set_log(tr_log_function function, void *user, tr_log_level level)
{
    pthread_once(&environment_read, read_environment);
    pthread_rwlock_wrlock(&sink.lock);
    sink.function = function;
    sink.user = user;
    sink.level = function ? level : TR_LOG_OFF;
    pthread_rwlock_unlock(&sink.lock);
}

bool tr__logs(tr_log_level level)
{
    pthread_once(&environment_read, read_environment);
    pthread_rwlock_rdlock(&sink.lock);
    bool listens = sink.function && level <= sink.level;
    pthread_rwlock_unlock(&sink.lock);
    return listens;
}

void tr__log(tr_log_level level, const char *format, ...)
{
    pthread_once(&environment_read, read_environment);
    pthread_rwlock_rdlock(&sink.lock);
    if (sink.function && level <= sink.level) {
        char *message = NULL;
        va_list arguments;
        va_start(arguments, format);
        if (vasprintf(&message, format, arguments) < 0) message = NULL;
        va_end(arguments);
        sink.function(level, message ? tr_printable(message) : "no memory for a message", sink.user);
        free(message);
    }
    pthread_rwlock_unlock(&sink.lock);
}
