#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

/* Process-wide: where messages go. */
static struct {
    pthread_rwlock_t lock;
    tr_log_function function;
    void *user;
    tr_log_level level;
} sink = {.lock = PTHREAD_RWLOCK_INITIALIZER};

void tr_set_log(tr_log_function function, void *user, tr_log_level level)
{
    pthread_rwlock_wrlock(&sink.lock);
    sink.function = function;
    sink.user = user;
    sink.level = function ? level : TR_LOG_OFF;
    pthread_rwlock_unlock(&sink.lock);
}

bool tr__logs(tr_log_level level)
{
    pthread_rwlock_rdlock(&sink.lock);
    bool listens = sink.function && level <= sink.level;
    pthread_rwlock_unlock(&sink.lock);
    return listens;
}

void tr__log(tr_log_level level, const char *format, ...)
{
    pthread_rwlock_rdlock(&sink.lock);
    if (sink.function && level <= sink.level) {
        char message[1024];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        sink.function(level, tr_printable(message), sink.user);
    }
    pthread_rwlock_unlock(&sink.lock);
}
