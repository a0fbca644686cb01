#include "comm_ranks.h"

#include "hosts.h"

#include <pthread.h>
#include <stdlib.h>

tr_group *join_group(const rank *r, const char *name)
{
    return tr_join(.store = r->store, .rank = r->number, .world_size = r->world, .name = name, .timeout_ms = JOIN_MS,
        .transport = r->transport, .algorithms = r->algorithms, .encrypt = r->encrypt);
}

static void run_rank(rank *r)
{
    TR_SCOPE;
    if (r->hosts) r->store = store_on_host(r->store, r->hosts[r->number]);
    r->group = join_group(r, NULL);
    OK(tr_status_of(r->group));
    r->body(r);
}

static void *rank_thread(void *arg)
{
    run_rank(arg);
    return NULL;
}

/* Ranks like the one given. */
static void run_like(const rank *like)
{
    int world = like->world;
    rank ranks[RANKS_ROOM] = {0};
    pthread_t threads[RANKS_ROOM];
    for (int i = 0; i < world; i++) {
        ranks[i] = *like;
        ranks[i].number = i;
        assert_int_equal(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]), 0);
    }
    for (int i = 0; i < world; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < world; i++)
        if (ranks[i].failure[0]) fail_msg("%s", ranks[i].failure);
}

void run_on(tr_store *store, int world, rank_body body, const void *arg)
{
    run_like(&(rank){.world = world, .store = store, .body = body, .arg = arg});
}

void run_tcp(int world, rank_body body, const char *algorithms, const void *arg)
{
    TR_SCOPE;
    run_like(&(rank){.world = world, .store = tr_store_memory(), .body = body, .arg = arg, .transport = "tcp",
        .algorithms = algorithms});
}

void run_hosts(const int *hosts, int world, rank_body body, const void *arg)
{
    TR_SCOPE;
    run_like(&(rank){.world = world, .store = tr_store_memory(), .body = body, .arg = arg, .hosts = hosts});
}

void run_tls(const int *hosts, int world, rank_body body, const void *arg)
{
    TR_SCOPE;
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = "a secret of the test's");
    run_like(&(rank){.world = world, .store = store, .body = body, .arg = arg, .hosts = hosts, .encrypt = true,
        .transport = hosts ? NULL : "tcp"});
}

void run(int world, rank_body body, const void *arg)
{
    TR_SCOPE;
    run_on(tr_store_memory(), world, body, arg);
}

void say_given_up(rank *r)
{
    int64_t count = 0;
    OK(tr_store_add(r->store, "given up", 1, &count));
    if (count == r->world - 1) OK(tr_store_set(r->store, "all have given up", "", 0));
}

void wait_until_given_up(rank *r)
{
    OK(tr_store_wait(r->store, "all have given up", JOIN_MS));
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

static bool is_shared(buffer_kind kind, const rank *r)
{
    return kind == SHARED || (kind == MIXED && r->number % 2 == 0);
}

void *make_buffer(buffer_kind kind, const rank *r, size_t bytes)
{
    return is_shared(kind, r) ? tr_shared_alloc(bytes) : malloc(bytes + 1);
}

void free_buffer(buffer_kind kind, const rank *r, void *memory)
{
    if (is_shared(kind, r))
        tr_shared_free(memory);
    else
        free(memory);
}
