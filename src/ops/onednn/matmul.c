#include "ops/onednn/matmul.h"

#include "base/log.h"
#include "ops/onednn/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct tr__matmul {
    tr__matmul_key key;
    atomic_int refs;
    uint64_t used;               /* when last, by the cache's clock */
    dnnl_primitive_t primitive;  /* NULL: oneDNN has no fast one */
    tr__dnnl_desc a, b, bias, c, scratchpad;
};

/* Process-wide: the primitives, the oldest of which make room, and the engine they are made for. */
enum { KEPT = 256 };
static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    tr__matmul *kept[KEPT];
    int count;
    uint64_t clock;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

void tr__matmul_unref(tr__matmul *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) > 1) return;
    if (m->primitive) dnnl_primitive_destroy(m->primitive);
    tr__dnnl_desc *descs[] = {&m->a, &m->b, &m->bias, &m->c, &m->scratchpad};
    for (size_t i = 0; i < sizeof descs / sizeof *descs; i++) tr__dnnl_desc_free(descs[i]);
    free(m);
}

static dnnl_status_t describe(tr__matmul *m)
{
    const tr__matmul_key *k = &m->key;
    dnnl_data_type_t type = k->dtype == TR_BF16 ? dnnl_bf16 : dnnl_f16;
    dnnl_status_t status = tr__dnnl_desc_new(&m->a, type, k->m, k->k, k->a_row, k->a_column);
    if (status == dnnl_success) status = tr__dnnl_desc_new(&m->b, type, k->k, k->n, k->b_row, k->b_column);
    if (status == dnnl_success) status = tr__dnnl_desc_new(&m->c, type, k->m, k->n, k->c_row, 1);
    if (status == dnnl_success) status = tr__dnnl_desc_new(&m->bias, type, 1, k->n, k->n, 1);
    return status;
}

static dnnl_status_t make_attributes(const tr__matmul_key *key, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !key->accumulate) return status;
    status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success) status = tr__dnnl_add_to(ops);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops) dnnl_post_ops_destroy(ops);
    return status;
}

/* oneDNN falls back to implementations that are a hundred times slower without a word. */
static bool is_slow(const_dnnl_primitive_desc_t desc, const tr__matmul_key *key)
{
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    bool slow = strncmp(name, "ref", 3) == 0;
    tr__log(TR_LOG_DEBUG, "oneDNN: matmul %s [%lld, %lld] x [%lld, %lld]: %s%s", tr_dtype_name((tr_dtype)key->dtype),
        (long long)key->m, (long long)key->k, (long long)key->k, (long long)key->n, name, slow ? ", declined" : "");
    return slow;
}

/* Leaves the primitive NULL when there is no fast one. */
static dnnl_status_t make_primitive(tr__matmul *m, dnnl_engine_t engine)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = describe(m);
    if (status == dnnl_success) status = make_attributes(&m->key, &attr);
    if (status == dnnl_success)
        status = tr__dnnl_matmul(&desc, engine, &m->a, &m->b, m->key.with_bias ? &m->bias : NULL, &m->c, attr);
    if (status == dnnl_success && !is_slow(desc, &m->key)) {
        status = tr__dnnl_scratchpad(desc, &m->scratchpad);
        if (status == dnnl_success) status = dnnl_primitive_create(&m->primitive, desc);
    }
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status == dnnl_unimplemented || status == dnnl_invalid_arguments ? dnnl_success : status;
}

static tr__matmul *find(const tr__matmul_key *key)
{
    for (int i = 0; i < cache.count; i++) {
        tr__matmul *m = cache.kept[i];
        if (memcmp(&m->key, key, sizeof *key) != 0) continue;
        m->used = ++cache.clock;
        atomic_fetch_add(&m->refs, 1);
        return m;
    }
    return NULL;
}

/* Gives the cache a reference; returns the one that had to go for it. */
static tr__matmul *keep(tr__matmul *m)
{
    int at = 0;
    if (cache.count < KEPT) {
        at = cache.count++;
        cache.kept[at] = NULL;
    } else {
        for (int i = 1; i < KEPT; i++)
            if (cache.kept[i]->used < cache.kept[at]->used) at = i;
    }
    tr__matmul *gone = cache.kept[at];
    atomic_fetch_add(&m->refs, 1);
    m->used = ++cache.clock;
    cache.kept[at] = m;
    return gone;
}

tr_status tr__matmul_get(const tr__matmul_key *key, tr__matmul **matmul)
{
    pthread_mutex_lock(&cache.lock);
    dnnl_status_t status = cache.engine ? dnnl_success : dnnl_engine_create(&cache.engine, dnnl_cpu, 0);
    tr__matmul *m = status == dnnl_success ? find(key) : NULL, *gone = NULL;
    if (!m && status == dnnl_success) { /* made under the lock: others would want the same one */
        m = calloc(1, sizeof *m);
        if (m) {
            m->key = *key;
            atomic_store(&m->refs, 1);
            status = make_primitive(m, cache.engine);
            if (status == dnnl_success) gone = keep(m);
        } else {
            status = dnnl_out_of_memory;
        }
    }
    pthread_mutex_unlock(&cache.lock);
    tr__matmul_unref(gone);
    *matmul = status == dnnl_success && m->primitive ? m : NULL;
    if (!*matmul) tr__matmul_unref(m);
    return *matmul ? TR_OK : status == dnnl_success ? TR__DECLINED : tr__onednn_fail(status, "matmul");
}

size_t tr__matmul_scratch(const tr__matmul *m)
{
    return tr__dnnl_desc_bytes(&m->scratchpad);
}

dnnl_status_t tr__matmul_run(const tr__matmul *m, const void *a, const void *b, const void *bias, void *c, void *scratch)
{
    const struct { int name; const tr__dnnl_desc *desc; const void *data; } parts[] = {
        {DNNL_ARG_SRC, &m->a, a}, {DNNL_ARG_WEIGHTS, &m->b, b}, {DNNL_ARG_DST, &m->c, c},
        {DNNL_ARG_SCRATCHPAD, &m->scratchpad, scratch}, {DNNL_ARG_BIAS, &m->bias, bias},
    };
    enum { PARTS = sizeof parts / sizeof *parts };
    dnnl_exec_arg_t arguments[PARTS];
    dnnl_stream_t stream = NULL;
    dnnl_status_t status = dnnl_stream_create(&stream, cache.engine, dnnl_stream_default_flags);
    int n = 0;
    for (int i = 0; i < PARTS && status == dnnl_success; i++) {
        if (!parts[i].data) continue;
        arguments[n].arg = parts[i].name;
        status = tr__dnnl_memory(&arguments[n].memory, parts[i].desc, cache.engine, (void *)parts[i].data);
        if (status == dnnl_success) n++;
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(m->primitive, stream, n, arguments);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    while (n > 0) dnnl_memory_destroy(arguments[--n].memory);
    if (stream) dnnl_stream_destroy(stream);
    return status;
}
