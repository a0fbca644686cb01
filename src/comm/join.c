/*
 * tr_join: from the environment, an address or a store to a group.
 *
 * env:// is torchrun's contract: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; rank 0
 * serves the store. Trireme's launcher serves it itself and says so with TRIREME_STORE=1; TRIREME_TOKEN is the job's
 * secret.
 */
#include "base/clock.h"
#include "comm/group.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Where a rank stands ----------------------------------------------------------------------------------------- */

typedef struct place {
    int rank, world_size, local_rank; /* local_rank below 0: the rank, as all are on this host */
    char host[256];
    int port;
    bool serve; /* by rank 0 */
    const char *token;
} place;

enum { PORT_MAX = 65535, RANKS_MAX = 1 << 20 };

static tr_status read_number(const char *name, const char *text, int least, int most, int *number)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!text[0] || *end) return tr__fail(TR_INVALID, "%s=%s is not a number", name, text);
    if (errno || value < least || value > most)
        return tr__fail(TR_INVALID, "%s=%s is not in %d … %d", name, text, least, most);
    *number = (int)value;
    return TR_OK;
}

/* A variable that must be there because another one is. */
static tr_status need_variable(const char *name, const char *because, const char **text)
{
    *text = getenv(name);
    if (*text && **text) return TR_OK;
    return tr__fail(TR_INVALID, "%s is set, but %s is not; start the program with a launcher, or set RANK, WORLD_SIZE, "
                                "MASTER_ADDR and MASTER_PORT", because, name);
}

static tr_status read_local_rank(place *p)
{
    int local_world = p->world_size;
    const char *text = getenv("LOCAL_WORLD_SIZE");
    if (text) TR__TRY(read_number("LOCAL_WORLD_SIZE", text, 1, p->world_size, &local_world));
    text = getenv("LOCAL_RANK");
    if (text) TR__TRY(read_number("LOCAL_RANK", text, 0, local_world - 1, &p->local_rank));
    return TR_OK;
}

static tr_status read_environment(place *p)
{
    const char *text, *rank = getenv("RANK"), *world = getenv("WORLD_SIZE");
    if (!rank && !world) return TR_OK; /* no launcher: a world of one */
    TR__TRY(need_variable("WORLD_SIZE", "RANK", &world));
    TR__TRY(need_variable("RANK", "WORLD_SIZE", &rank));
    TR__TRY(read_number("WORLD_SIZE", world, 1, RANKS_MAX, &p->world_size));
    TR__TRY(read_number("RANK", rank, 0, p->world_size - 1, &p->rank));
    TR__TRY(read_local_rank(p));
    if (p->world_size == 1) return TR_OK;
    TR__TRY(need_variable("MASTER_PORT", "WORLD_SIZE", &text));
    TR__TRY(read_number("MASTER_PORT", text, 1, PORT_MAX, &p->port));
    TR__TRY(need_variable("MASTER_ADDR", "WORLD_SIZE", &text));
    if (strlen(text) >= sizeof p->host) return tr__fail(TR_INVALID, "MASTER_ADDR=%.40s… is too long", text);
    strcpy(p->host, text);
    const char *hosted = getenv("TRIREME_STORE");
    p->serve = !(hosted && strcmp(hosted, "1") == 0);
    return TR_OK;
}

static tr_status check_ranks(const tr_join_options *o, place *p)
{
    if (o->world_size < 1 || o->world_size > RANKS_MAX)
        return tr__fail(TR_INVALID, "tr_join: a .world_size of %d is not in 1 … %d", o->world_size, RANKS_MAX);
    if (o->rank < 0 || o->rank >= o->world_size)
        return tr__fail(TR_INVALID, "tr_join: a .rank of %d is not in 0 … %d", o->rank, o->world_size - 1);
    p->rank = o->rank;
    p->world_size = o->world_size;
    return TR_OK;
}

/* tcp://host:port, tcp://[::1]:port */
static tr_status read_url(const tr_join_options *o, place *p)
{
    const char *host = o->init + strlen("tcp://"), *colon = strrchr(host, ':');
    if (!colon) return tr__fail(TR_INVALID, "tr_join: '%s' has no port; write tcp://host:port", o->init);
    size_t length = (size_t)(colon - host);
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') host++, length -= 2;
    if (length == 0 || length >= sizeof p->host)
        return tr__fail(TR_INVALID, "tr_join: '%s' has no host; write tcp://host:port", o->init);
    memcpy(p->host, host, length);
    p->host[length] = 0;
    if (read_number("the port", colon + 1, 1, PORT_MAX, &p->port) != TR_OK)
        return tr__fail_context(TR_INVALID, "tr_join: '%s'", o->init);
    TR__TRY(check_ranks(o, p));
    p->serve = true;
    return TR_OK;
}

static tr_status find_place(const tr_join_options *o, place *p)
{
    *p = (place){.world_size = 1, .local_rank = -1, .token = o->token ? o->token : getenv("TRIREME_TOKEN")};
    if (o->store) return check_ranks(o, p);
    if (!o->init || strcmp(o->init, "env://") == 0) return read_environment(p);
    if (strncmp(o->init, "tcp://", 6) == 0) return read_url(o, p);
    return tr__fail(TR_INVALID, "tr_join: '%s' is no way to join; there are env:// and tcp://host:port", o->init);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static const tr__backend *const backends[] = {&tr__native_backend};

static const tr__backend *find_backend(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (!name || strcmp(backends[i]->name, name) == 0) return backends[i];
    tr__fail(TR_UNSUPPORTED, "tr_join: this build has no backend '%s'; it has 'native'", name);
    return NULL;
}

static tr_store *open_store(const place *p, int timeout_ms)
{
    return tr_store_tcp(p->host, p->port, .serve = p->serve && p->rank == 0, .token = p->token,
                        .timeout_ms = timeout_ms);
}

static tr_status join_once(tr_group *group, tr_store *given, const place *p, int timeout_ms)
{
    TR_SCOPE;
    tr_store *store = given ? given : p->world_size > 1 ? open_store(p, timeout_ms) : NULL;
    TR__TRY(tr_status_of(store));
    tr__member member = {group->name, p->rank, p->world_size, store, timeout_ms};
    TR__TRY(group->backend->join(&member, &group->state));
    group->store = tr__ref(store);
    return TR_OK;
}

/* A store that rank 0 serves may be the one of a group that rank 0 is just leaving: when its connection breaks, the
 * next one is on its way. */
static tr_status join(tr_group *group, tr_store *given, const place *p)
{
    int64_t deadline = tr__now_ns() + (int64_t)group->timeout_ms * 1000000;
    for (int64_t left = group->timeout_ms;;) {
        tr_status status = join_once(group, given, p, (int)left);
        left = (deadline - tr__now_ns()) / 1000000;
        if (status != TR_IO || given || !p->serve || p->rank == 0 || left <= 0) return status;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
}

static tr_status set_up(tr_group *group, const tr_join_options *o, place *p)
{
    const char *name = o->name ? o->name : "world";
    if (!name[0] || strlen(name) >= TR__GROUP_NAME || strpbrk(name, "/ \n"))
        return tr__fail(TR_INVALID, "tr_join: a .name has 1 … %d bytes and no slash or blank", TR__GROUP_NAME - 1);
    if (o->timeout_ms < 0) return tr__fail(TR_INVALID, "tr_join: a .timeout_ms of %d is negative", o->timeout_ms);
    TR__TRY(tr_status_of(o->store));
    TR__TRY(find_place(o, p));
    const tr__backend *backend = find_backend(o->backend);
    if (!backend) return TR_UNSUPPORTED;
    tr__group_init(group);
    group->backend = backend;
    strcpy(group->name, name);
    group->rank = p->rank;
    group->world_size = p->world_size;
    group->local_rank = p->local_rank < 0 ? p->rank : p->local_rank;
    group->timeout_ms = o->timeout_ms ? o->timeout_ms : TR__GROUP_TIMEOUT_MS;
    return TR_OK;
}

tr_group *tr_join_with(const tr_join_options *options)
{
    tr_join_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tr_group *group = tr__object_new(&tr__group_type);
    if (tr__error_of(group)) return group;
    place p;
    tr_status status = set_up(group, &o, &p);
    if (status == TR_OK) status = join(group, o.store, &p);
    if (status != TR_OK) tr__object_break(group);
    return group;
}
