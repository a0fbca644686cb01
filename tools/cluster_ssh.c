#include "cluster.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void tr__text_add(tr__text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(t->at + t->used, t->bytes - t->used, format, arguments);
    va_end(arguments);
    t->full |= n < 0 || (size_t)n >= t->bytes - t->used;
    t->used = t->full ? t->bytes - 1 : t->used + (size_t)n;
}

/* What stands in '…' means itself; a ' is written '\''. */
void tr__text_quote(tr__text *t, const char *word)
{
    tr__text_add(t, " '");
    for (; *word; word++) {
        if (*word == '\'') tr__text_add(t, "'\\''");
        else tr__text_add(t, "%c", *word);
    }
    tr__text_add(t, "'");
}

tr_status tr__text_status(const tr__text *t)
{
    return t->full ? tr_fail(TR_INVALID, "cluster: the command has more than %zu bytes", t->bytes - 1) : TR_OK;
}

/* A password cannot be typed here, and a host that is switched off must not take minutes. */
static const char *const always[] = {"-T", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=3",
    "-oServerAliveCountMax=3"};

tr_status tr__ssh_command(const tr_cluster *c, const tr_cluster_host *host, const char *command,
    const char *argv[TR__SSH_WORDS], char **words)
{
    int n = 0;
    *words = NULL;
    if (tr__host_is_local(host)) {
        argv[n++] = "sh";
        argv[n++] = "-c";
    } else {
        enum { fixed = sizeof always / sizeof *always };
        *words = strdup(c->ssh);
        if (!*words) return tr_fail(TR_NO_MEMORY, "cluster: no memory");
        char *rest, *word = strtok_r(*words, " ", &rest);
        for (; word && n < TR__SSH_WORDS - fixed - 4; word = strtok_r(NULL, " ", &rest)) argv[n++] = word;
        if (!n || word) {
            free(*words);
            return tr_fail(TR_INVALID, "cluster: '%s' is no command for ssh, of 1 to %d words", c->ssh,
                TR__SSH_WORDS - fixed - 4);
        }
        for (int i = 0; i < fixed; i++) argv[n++] = always[i];
        argv[n++] = "--";
        argv[n++] = host->name;
    }
    argv[n++] = command;
    argv[n] = NULL;
    return TR_OK;
}

const char *tr__ssh_advice(const char *complaint)
{
    static const struct {
        const char *complaint, *advice;
    } table[] = {
        {"Permission denied", ": it would ask for a password, which nobody can type here; put a key there with ssh-copy-id"},
        {"Host key verification failed", ": its host key is not known here; log in once by hand"},
        {"Could not resolve hostname", ": is the name right?"},
        {"Connection refused", ": no ssh server is listening there"},
        {"timed out", ": is it switched on, and is the network up?"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strstr(complaint, table[i].complaint)) return table[i].advice;
    return "";
}
