#include "ops/onednn/primitive.h"

#include "base/log.h"
#include "ops/onednn/engine.h"
#include "ops/op.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Process-wide: the primitives, the oldest of which make room, and the engine they are made for. */
enum { KEPT = 512 };
static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    tr__primitive *kept[KEPT];
    int count;
    uint64_t clock;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tr__primitive_unref(tr__primitive *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) > 1) return;
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    for (int i = 0; i <= TR__PRIMITIVE_PARTS; i++) tr__dnnl_desc_free(&p->desc[i]);
    free(p);
}

/* ---- Making ------------------------------------------------------------------------------------------------------- */

/* It is given its scratchpad. */
static dnnl_status_t attributes(bool accumulate, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !accumulate) return status;
    status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success) status = tr__dnnl_add_to(ops);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops) dnnl_post_ops_destroy(ops);
    return status;
}

/* oneDNN falls back to implementations that are a hundred times slower without a word. */
static bool is_slow(const_dnnl_primitive_desc_t desc, const char *text)
{
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    bool slow = strncmp(name, "ref", 3) == 0;
    tr__log(TR_LOG_DEBUG, "oneDNN: %s: %s%s", text, name, slow ? ", declined" : "");
    return slow;
}

/* The primitive itself, unless it would be a slow one. */
static dnnl_status_t make_primitive(tr__primitive *p, tr__primitive_maker make, const void *user)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = attributes(p->key.accumulate, &attr);
    if (status == dnnl_success) status = make(p, cache.engine, user, attr, &desc);
    if (status == dnnl_success && !(*p->text && is_slow(desc, p->text))) {
        p->argument[p->parts] = DNNL_ARG_SCRATCHPAD;
        status = tr__dnnl_argument(desc, DNNL_ARG_SCRATCHPAD, &p->desc[p->parts]);
        if (status == dnnl_success) status = dnnl_primitive_create(&p->primitive, desc);
    }
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

/* ---- Keeping ------------------------------------------------------------------------------------------------------ */

static tr__primitive *find(const tr__primitive_key *key)
{
    for (int i = 0; i < cache.count; i++) {
        tr__primitive *p = cache.kept[i];
        if (p->key.kind != key->kind || p->key.accumulate != key->accumulate) continue;
        if (memcmp(p->key.number, key->number, sizeof key->number) != 0) continue;
        p->used = ++cache.clock;
        atomic_fetch_add(&p->refs, 1);
        return p;
    }
    return NULL;
}

/* Gives the cache a reference; returns the one that had to go for it. */
static tr__primitive *keep(tr__primitive *p)
{
    int at = 0;
    if (cache.count < KEPT) {
        at = cache.count++;
        cache.kept[at] = NULL;
    } else {
        for (int i = 1; i < KEPT; i++)
            if (cache.kept[i]->used < cache.kept[at]->used) at = i;
    }
    tr__primitive *gone = cache.kept[at];
    atomic_fetch_add(&p->refs, 1);
    p->used = ++cache.clock;
    cache.kept[at] = p;
    return gone;
}

tr_status tr__primitive_get(const char *what, const tr__primitive_key *key, tr__primitive_maker make, const void *user,
    tr__primitive **out)
{
    pthread_mutex_lock(&cache.lock);
    dnnl_status_t status = cache.engine ? dnnl_success : dnnl_engine_create(&cache.engine, dnnl_cpu, 0);
    tr__primitive *p = status == dnnl_success ? find(key) : NULL, *gone = NULL;
    if (!p && status == dnnl_success) { /* made under the lock: others would want the same one */
        p = calloc(1, sizeof *p);
        status = p ? dnnl_success : dnnl_out_of_memory;
        if (p) {
            p->key = *key;
            atomic_store(&p->refs, 1);
            status = make_primitive(p, make, user);
            if (status == dnnl_unimplemented || status == dnnl_invalid_arguments) status = dnnl_success;
        }
        if (status == dnnl_success) gone = keep(p);
    }
    pthread_mutex_unlock(&cache.lock);
    tr__primitive_unref(gone);
    *out = status == dnnl_success && p->primitive ? p : NULL;
    if (!*out) tr__primitive_unref(p);
    return *out ? TR_OK : status == dnnl_success ? TR_DECLINED : tr__onednn_fail(status, what);
}

/* ---- Running ------------------------------------------------------------------------------------------------------ */

dnnl_status_t tr__primitive_run(const tr__primitive *p, const void *const *data, int index)
{
    size_t bytes = tr__dnnl_desc_bytes(&p->desc[p->parts]);
    void *scratch = bytes ? tr__cpu_alloc(index, bytes) : NULL;
    if (bytes && !scratch) return dnnl_out_of_memory;
    dnnl_exec_arg_t arguments[TR__PRIMITIVE_PARTS + 1];
    dnnl_stream_t stream = NULL;
    dnnl_status_t status = dnnl_stream_create(&stream, cache.engine, dnnl_stream_default_flags);
    int n = 0;
    for (int i = 0; i <= p->parts && status == dnnl_success; i++) {
        void *memory = i < p->parts ? (void *)data[i] : scratch;
        if (!memory) continue;
        arguments[n].arg = p->argument[i];
        status = tr__dnnl_memory(&arguments[n].memory, &p->desc[i], cache.engine, memory);
        if (status == dnnl_success) n++;
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(p->primitive, stream, n, arguments);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    while (n > 0) dnnl_memory_destroy(arguments[--n].memory);
    if (stream) dnnl_stream_destroy(stream);
    if (scratch) tr__cpu_free(index, scratch, bytes);
    return status;
}
