#include "cluster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The hosts file ------------------------------------------------------------------------------------------------ */

typedef struct place {
    const char *file;
    int line;
} place;

static tr_status read_slots(const place *at, const char *text, int *slots)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (!*text || *end || errno || n < 1 || n > TR_LAUNCH_MAX_RANKS)
        return tr_fail(TR_FORMAT, "%s:%d: slots=%s is not in 1 … %d", at->file, at->line, text, TR_LAUNCH_MAX_RANKS);
    *slots = (int)n;
    return TR_OK;
}

/* Names go to ssh, and addresses into commands: neither may look like an option. */
static tr_status check_name(const place *at, const char *what, const char *name)
{
    if (*name && *name != '-' && !strpbrk(name, "\"'\\$`;&|<>()=")) return TR_OK;
    return tr_fail(TR_FORMAT, "%s:%d: '%s' is no %s", at->file, at->line, name, what);
}

static tr_status read_host(const place *at, char *line, tr_cluster_host *host)
{
    char *rest, *name = strtok_r(line, " \t\r\n", &rest), *word, *address = name;
    *host = (tr_cluster_host){.slots = 1};
    TRY(check_name(at, "name of a host", name));
    while ((word = strtok_r(NULL, " \t\r\n", &rest))) {
        if (!strncmp(word, "slots=", 6)) {
            TRY(read_slots(at, word + 6, &host->slots));
        } else if (!strncmp(word, "address=", 8)) {
            address = word + 8;
        } else {
            return tr_fail(TR_FORMAT, "%s:%d: '%s' is not known; a host is 'name slots=N address=A', the latter two if need be",
                at->file, at->line, word);
        }
    }
    if (address == name && strchr(name, '@')) address = strrchr(name, '@') + 1; /* the user is ssh's matter */
    TRY(check_name(at, "address", address));
    host->name = strdup(name);
    host->address = strdup(address);
    return host->name && host->address ? TR_OK : tr_fail(TR_NO_MEMORY, "%s: no memory for its hosts", at->file);
}

static tr_status add_host(const place *at, char *line, tr_cluster_host **hosts, int *count)
{
    tr_cluster_host *more = realloc(*hosts, (size_t)(*count + 1) * sizeof *more);
    if (!more) return tr_fail(TR_NO_MEMORY, "%s: no memory for its hosts", at->file);
    *hosts = more;
    more[*count] = (tr_cluster_host){0};
    tr_status status = read_host(at, line, &more[*count]);
    (*count)++;
    TRY(status);
    for (int i = 0; i + 1 < *count; i++)
        if (!strcmp(more[i].name, more[*count - 1].name))
            return tr_fail(TR_FORMAT, "%s:%d: %s stands there twice; its slots belong in one line", at->file, at->line,
                more[i].name);
    return TR_OK;
}

tr_status tr__cluster_hosts_read(FILE *file, const char *name, tr_cluster_host **hosts, int *count)
{
    place at = {name, 0};
    char *line = NULL;
    size_t capacity = 0;
    tr_status status = TR_OK;
    *hosts = NULL;
    *count = 0;
    while (status == TR_OK && getline(&line, &capacity, file) >= 0) {
        at.line++;
        line[strcspn(line, "#")] = '\0';
        if (line[strspn(line, " \t\r\n")]) status = add_host(&at, line, hosts, count);
    }
    free(line);
    if (status == TR_OK && ferror(file)) status = tr_fail(TR_IO, "cannot read %s: %s", name, strerror(errno));
    if (status == TR_OK && !*count) status = tr_fail(TR_FORMAT, "%s names no host", name);
    if (status) {
        tr__cluster_hosts_free(*hosts, *count);
        *hosts = NULL;
        *count = 0;
    }
    return status;
}

void tr__cluster_hosts_free(tr_cluster_host *hosts, int count)
{
    for (int i = 0; i < count; i++) {
        free((char *)hosts[i].name);
        free((char *)hosts[i].address);
    }
    free(hosts);
}

/* ---- The object ---------------------------------------------------------------------------------------------------- */

static void destroy(void *self)
{
    tr_cluster *c = self;
    tr__cluster_hosts_free(c->hosts, c->count);
    free(c->ssh);
    free(c->command);
}

static const tr_object_type type = {.name = "cluster", .size = sizeof(tr_cluster), .destroy = destroy};

static tr_status read_hosts(tr_cluster *c, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return tr_fail(errno == ENOENT ? TR_NOT_FOUND : TR_IO, "cannot read %s, the list of hosts: %s", path, strerror(errno));
    tr_status status = tr__cluster_hosts_read(file, path, &c->hosts, &c->count);
    fclose(file);
    return status;
}

static tr_status this_machine(tr_cluster *c, int slots)
{
    if (slots < 0 || slots > TR_LAUNCH_MAX_RANKS)
        return tr_fail(TR_INVALID, "cluster: %d slots: it takes 1 to %d", slots, TR_LAUNCH_MAX_RANKS);
    c->hosts = calloc(1, sizeof *c->hosts);
    if (!c->hosts) return tr_fail(TR_NO_MEMORY, "cluster: no memory for its hosts");
    c->count = 1;
    *c->hosts = (tr_cluster_host){strdup("localhost"), slots ? slots : (int)sysconf(_SC_NPROCESSORS_ONLN), strdup("127.0.0.1")};
    return c->hosts->name && c->hosts->address ? TR_OK : tr_fail(TR_NO_MEMORY, "cluster: no memory for its hosts");
}

static tr_status open_cluster(tr_cluster *c, const tr_cluster_options *o)
{
    c->ssh = strdup(o->ssh ? o->ssh : "ssh");
    c->command = strdup(o->command ? o->command : "trireme");
    const char *base = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (o->state)
        snprintf(c->state, sizeof c->state, "%s", o->state);
    else if (base && *base)
        snprintf(c->state, sizeof c->state, "%s/trireme/jobs", base);
    else
        snprintf(c->state, sizeof c->state, "%s/.local/state/trireme/jobs", home ? home : "");
    if (o->hosts && o->slots)
        return tr_fail(TR_INVALID, "cluster: %d slots, and a list of hosts, %s, which says how many each of them has: give one",
            o->slots, o->hosts);
    TRY(o->hosts ? read_hosts(c, o->hosts) : this_machine(c, o->slots));
    for (int i = 1; i < c->count; i++)
        if (tr__host_is_local(&c->hosts[0]) && strcmp(c->hosts[0].address, c->hosts[0].name) == 0)
            return tr_fail(TR_INVALID, "cluster: the first host is %s, and the others need an address of it: %s address=…",
                c->hosts[0].name, c->hosts[0].name);
    return c->ssh && c->command ? TR_OK : tr_fail(TR_NO_MEMORY, "cluster: no memory");
}

tr_cluster *tr_cluster_open_with(const tr_cluster_options *options)
{
    tr_cluster_options o = {0};
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tr_cluster *c = tr_object_new(&type);
    if (tr_status_of(c) == TR_OK && open_cluster(c, &o) != TR_OK) (void)tr_object_break(c);
    return c;
}

tr_status tr__cluster_there(const tr_cluster *cluster, const char *function)
{
    return cluster ? tr_status_of(cluster) : tr_fail(TR_INVALID, "%s: the cluster is NULL", function);
}

int tr_cluster_count(const tr_cluster *cluster)
{
    return cluster && tr_status_of(cluster) == TR_OK ? cluster->count : 0;
}

const tr_cluster_host *tr_cluster_host_at(const tr_cluster *cluster, int i)
{
    return i >= 0 && i < tr_cluster_count(cluster) ? &cluster->hosts[i] : NULL;
}

bool tr__host_is_local(const tr_cluster_host *host)
{
    return !strcmp(host->name, "localhost");
}
