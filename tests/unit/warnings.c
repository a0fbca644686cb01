#include "warnings.h"

#include <trireme/base.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char text[8192];

static void keep(tr_log_level level, const char *message, void *user)
{
    (void)level, (void)user;
    pthread_mutex_lock(&lock);
    size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, "%s\n", message);
    pthread_mutex_unlock(&lock);
}

void warnings_keep(void)
{
    text[0] = 0;
    tr_set_log(keep, NULL, TR_LOG_WARN);
}

const char *warnings_kept(void)
{
    return text;
}

void warnings_end(void)
{
    tr_set_log(NULL, NULL, TR_LOG_OFF);
}
