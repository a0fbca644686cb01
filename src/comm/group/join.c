/*
 * tr_join: from the environment, an address or a store to a group.
 *
 * env:// is torchrun's contract: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; rank 0
 * serves the store. Trireme's launcher serves it itself and says so with TRIREME_STORE=1; TRIREME_TOKEN is the job's
 * secret. Under mpirun and srun, environment.c knows what stands for these.
 */
#include "base/check.h"
#include "base/clock.h"
#include "base/given.h"
#include "base/memory.h"
#include "comm/algo/choice.h"
#include "comm/group/environment.h"
#include "comm/group/group.h"
#include "net/store/store.h"
#include "net/tls.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Where a rank stands ----------------------------------------------------------------------------------------- */

static tr_status check_ranks(const tr_join_options *o, tr__place *p)
{
    if (o->world_size < 1 || o->world_size > TR__RANKS_MAX)
        return tr__fail(TR_INVALID, "tr_join: a .world_size of %d is not in 1 … %d", o->world_size, TR__RANKS_MAX);
    if (o->rank < 0 || o->rank >= o->world_size)
        return tr__fail(TR_INVALID, "tr_join: a .rank of %d is not in 0 … %d", o->rank, o->world_size - 1);
    p->rank = o->rank;
    p->world_size = o->world_size;
    return TR_OK;
}

/* tcp://host:port, tcp://[::1]:port */
static tr_status read_url(const tr_join_options *o, tr__place *p)
{
    const char *host = o->init + strlen("tcp://"), *colon = strrchr(host, ':');
    if (!colon) return tr__fail(TR_INVALID, "tr_join: '%s' has no port; write tcp://host:port", o->init);
    size_t length = (size_t)(colon - host);
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') host++, length -= 2;
    if (length == 0 || length >= sizeof p->host)
        return tr__fail(TR_INVALID, "tr_join: '%s' has no host; write tcp://host:port", o->init);
    memcpy(p->host, host, length);
    p->host[length] = 0;
    if (tr__environment_number("the port", colon + 1, 1, TR__PORT_MAX, &p->port) != TR_OK)
        return tr__fail_context(TR_INVALID, "tr_join: '%s'", o->init);
    TR__TRY(check_ranks(o, p));
    p->serve = true;
    return TR_OK;
}

static tr_status find_place(const tr_join_options *o, const tr__backend *backend, int timeout_ms, tr__place *p)
{
    *p = (tr__place){.world_size = 1, .local_rank = -1, .insecure = o->insecure};
    p->token = o->token ? o->token : getenv("TRIREME_TOKEN");
    p->transport = o->transport;
    p->address = o->address ? o->address : getenv("TRIREME_ADDRESS");
    if (o->store) return check_ranks(o, p);
    if (!o->init || strcmp(o->init, "env://") == 0) {
        bool by_mpi = backend == &tr__mpi_backend;
        if (!o->rank && !o->world_size) return tr__environment_place(by_mpi, timeout_ms, p);
        TR__TRY(check_ranks(o, p)); /* those that are given count, as in PyTorch, and the environment says where they meet */
        return tr__environment_meeting(by_mpi, timeout_ms, p);
    }
    if (strncmp(o->init, "tcp://", 6) == 0) return read_url(o, p);
    if (strncmp(o->init, "file://", 7) == 0) {
        p->path = o->init + 7;
        return check_ranks(o, p);
    }
    return tr__fail(TR_INVALID, "tr_join: '%s' is no way to join; there are env://, tcp://host:port and file://path",
        o->init);
}

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

static const tr__backend *const backends[] = {&tr__native_backend, &tr__mpi_backend, &tr__nccl_backend};

static const tr__backend *find_backend(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (!name || strcmp(backends[i]->name, name) == 0) return backends[i];
    tr__fail(TR_UNSUPPORTED, "tr_join: there is no backend '%s'; there are 'native', 'mpi' and 'nccl'", name);
    return NULL;
}

/* The file needs no key, but connections between the ranks may. */
static tr_store *open_file(const tr__place *p, int timeout_ms)
{
    tr_store *store = tr_store_file(p->path, .timeout_ms = timeout_ms);
    bool keyed = p->token && p->token[0] && !tr__error_of(store);
    if (keyed && tr__tls_key_new(p->token, &store->key) != TR_OK) tr__object_break(store);
    return store;
}

static tr_store *open_store(const tr__place *p, int timeout_ms)
{
    if (p->path) return open_file(p, timeout_ms);
    tr_store_tcp_options o = {.size = sizeof o, .host = p->host, .port = p->port, .token = p->token};
    o.serve = p->serve && p->rank == 0;
    o.timeout_ms = timeout_ms;
    o.insecure = p->insecure;
    tr_store *store = tr__store_tcp_shared(&o);
    if (!p->restarts) return store;
    char prefix[32]; /* what ranks of before have left there is not taken for these ranks' */
    snprintf(prefix, sizeof prefix, "restart/%d", p->restarts);
    return tr_store_prefix(store, prefix);
}

/* *reached: whether the store was there. */
static tr_status join_once(tr_group *group, tr_store *given, const tr__place *p, int timeout_ms, bool *reached)
{
    TR_SCOPE;
    tr_store *store = given ? given : p->world_size > 1 ? open_store(p, timeout_ms) : NULL;
    *reached = tr_status_of(store) == TR_OK;
    TR__TRY(tr_status_of(store));
    tr__member member = group->member;
    member.store = store;
    member.timeout_ms = timeout_ms;
    return tr__group_enter(group, &member, NULL);
}

/* Only the native backend's connections are ours to encrypt. */
static tr_status choose_encryption(const tr_join_options *o, const tr__backend *backend, bool *encrypt)
{
    const char *variable = getenv("TRIREME_ENCRYPT");
    bool on = variable && strcmp(variable, "1") == 0, off = !variable || !*variable || strcmp(variable, "0") == 0;
    if (!on && !off) return tr__fail(TR_INVALID, "TRIREME_ENCRYPT=%s is neither 0 nor 1", variable);
    *encrypt = o->encrypt || on;
    if (!*encrypt || backend == &tr__native_backend) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "tr_join: the backend '%s' does not encrypt what ranks send each other; go without "
        ".encrypt and TRIREME_ENCRYPT, or use 'native'", backend->name);
}

/* A store that rank 0 serves may be the one of a group that rank 0 is just leaving: when its connection breaks, the
 * next one is on its way; unless rank 0 is gone, or has given up. */
static tr_status join(tr_group *group, tr_store *given, const tr__place *p)
{
    int64_t deadline = tr__now_ns() + (int64_t)group->member.timeout_ms * 1000000;
    tr__error *lost = NULL;
    for (int64_t left = group->member.timeout_ms;;) {
        bool reached;
        tr_status status = join_once(group, given, p, (int)left, &reached);
        left = (deadline - tr__now_ns()) / 1000000;
        bool again = status == TR_IO && !given && p->serve && p->rank != 0 && left > 0;
        if (again && reached) {
            tr__error_unref(lost);
            lost = tr__error_take();
        }
        if (again) {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            continue;
        }
        if ((status == TR_TIMEOUT || status == TR_IO) && !reached && lost) {
            tr__fail_stored(lost);
            status = tr__fail_context(status, "rank 0 has ended or given up, and with it the store where all meet");
        } else if (status == TR_TIMEOUT && !reached && !given && p->serve && p->rank != 0) {
            status = tr__fail_context(status, "rank 0, which serves the store where all meet, was not reached");
        }
        tr__error_unref(lost);
        return status;
    }
}

static tr_status choose_timeout(const tr_join_options *o, int *timeout_ms)
{
    if (TR__OR(o, timeout_ms, TR__GROUP_TIMEOUT_MS) < 1)
        return tr__fail(TR_INVALID, "tr_join: a .timeout_ms of %d must be positive", o->timeout_ms);
    const char *variable = getenv("TRIREME_TIMEOUT");
    *timeout_ms = o->timeout_ms ? o->timeout_ms : TR__GROUP_TIMEOUT_MS;
    if (o->timeout_ms || !variable || !*variable) return TR_OK;
    int seconds;
    TR__TRY(tr__environment_number("TRIREME_TIMEOUT", variable, 1, INT_MAX / 1000, &seconds));
    *timeout_ms = seconds * 1000;
    return TR_OK;
}

static tr_status set_up(tr_group *group, const tr_join_options *o, tr__place *p)
{
    const char *name = o->name ? o->name : "world";
    if (!name[0] || strlen(name) >= TR__GROUP_NAME || strpbrk(name, "/ \n"))
        return tr__fail(TR_INVALID, "tr_join: a .name has 1 … %d bytes and no slash or blank", TR__GROUP_NAME - 1);
    if (TR__OR(o, report_ms, TR__GROUP_REPORT_MS) < 1)
        return tr__fail(TR_INVALID, "tr_join: a .report_ms of %d must be positive", o->report_ms);
    if (TR__OR(o, unexpected_bytes, TR__GROUP_UNEXPECTED) < 1)
        return tr__fail(TR_INVALID, "tr_join: .unexpected_bytes of %lld must be positive", (long long)o->unexpected_bytes);
    TR__TRY(tr_status_of(o->store));
    const tr__backend *backend = find_backend(o->backend);
    if (!backend) return TR_UNSUPPORTED;
    int timeout_ms = 0;
    TR__TRY(choose_timeout(o, &timeout_ms));
    TR__TRY(find_place(o, backend, timeout_ms, p));
    tr__member member = {.backend = backend, .rank = p->rank, .world_size = p->world_size, .device = o->device,
        .local_rank = p->local_rank < 0 ? p->rank : p->local_rank, .timeout_ms = timeout_ms, .report_ms = o->report_ms,
        .transport = p->transport, .address = p->address,
        .unexpected_bytes = o->unexpected_bytes ? o->unexpected_bytes : TR__GROUP_UNEXPECTED};
    TR__TRY(choose_encryption(o, backend, &member.encrypt));
    /* A job without a name is known by where its ranks meet, if that is an address. */
    char address[sizeof p->host + 16];
    TR__FREED char *algorithms = NULL;
    const char *job = getenv("TRIREME_JOB"), *folder = o->flight_dir ? o->flight_dir : getenv("TRIREME_FLIGHT_DIR");
    snprintf(address, sizeof address, "%s:%d", p->host, p->port);
    if (!job || !*job) job = p->host[0] ? address : NULL;
    TR__TRY(tr__algorithms_text(o->algorithms, &algorithms));
    member.algorithms = algorithms;
    group->check = !backend->signs && (o->check || tr__check_asks("1"));
    return tr__group_init(group, name, &member, job, folder);
}

tr_group *tr_join_with(const tr_join_options *options)
{
    tr_join_options o = {0};
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tr_group *group = tr__object_new(&tr__group_type);
    if (tr__error_of(group)) return group;
    tr__place p;
    tr_status status = set_up(group, &o, &p);
    if (status == TR_OK) status = join(group, o.store ? o.store : p.store, &p);
    if (status != TR_OK) tr__object_break(group);
    return group;
}
