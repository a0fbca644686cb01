#include "parallel/mirror.h"

#include "ops/node.h"

#include <pthread.h>
#include <stdlib.h>

enum { ALIGNMENT = 256 }; /* bytes: parameters lie in a copy as they lie in their storage */

/* The bytes of a storage that hold parameters, and their copy. */
typedef struct region {
    tr__storage *of; /* a reference, so that no other storage takes its address */
    size_t begin, end;
    tr_tensor *copy; /* u8 [end - begin] on the mirror's device, kept */
    bool stale;
} region;

struct tr__mirror {
    tr__object object;
    tr_tensor_list *parameters; /* kept */
    tr_device device;
    pthread_mutex_t lock;       /* of what follows */
    region *regions;
    int n_regions;
    int *region_of;             /* [parameters] */
    unsigned *versions;         /* [parameters], at the latest copy */
};

static void forget(tr__mirror *m)
{
    for (int i = 0; i < m->n_regions; i++) {
        tr__storage_unref(m->regions[i].of);
        tr__unref(m->regions[i].copy);
    }
    m->n_regions = 0;
}

static void destroy(void *self)
{
    tr__mirror *m = self;
    forget(m);
    free(m->regions);
    free(m->region_of);
    free(m->versions);
    tr__unref(m->parameters);
    pthread_mutex_destroy(&m->lock);
}

static const tr__type mirror_type = {"mirror", sizeof(tr__mirror), destroy};

tr__mirror *tr__mirror_new(tr_tensor_list *parameters, tr_device device)
{
    tr__mirror *m = tr__object_new(&mirror_type);
    if (m->object.error) return m;
    size_t n = (size_t)tr_list_count(parameters) + 1;
    pthread_mutex_init(&m->lock, NULL);
    m->parameters = tr_keep(parameters);
    m->device = device;
    m->regions = calloc(n, sizeof *m->regions);
    m->region_of = calloc(n, sizeof *m->region_of);
    m->versions = calloc(n, sizeof *m->versions);
    if (m->regions && m->region_of && m->versions) return m;
    tr__fail(TR_NO_MEMORY, "out of memory for the copies of %zu parameters", n - 1);
    tr__object_break(m);
    return m;
}

/* Do parameters lie where the regions say? An optimizer moves them into its arena. */
static bool fits(const tr__mirror *m)
{
    for (int i = 0; i < tr_list_count(m->parameters); i++) {
        const tr_tensor *p = tr_list_at(m->parameters, i);
        const region *r = &m->regions[m->region_of[i]];
        size_t begin, end;
        tr__extent(p, &begin, &end);
        if (m->n_regions == 0 || r->of != p->storage || begin < r->begin || end > r->end) return false;
    }
    return true;
}

static tr_status lay_out(tr__mirror *m)
{
    forget(m);
    for (int i = 0; i < tr_list_count(m->parameters); i++) {
        const tr_tensor *p = tr_list_at(m->parameters, i);
        size_t begin, end;
        int at = 0;
        tr__extent(p, &begin, &end);
        begin -= begin % ALIGNMENT;
        while (at < m->n_regions && m->regions[at].of != p->storage) at++;
        region *r = &m->regions[at];
        if (at == m->n_regions) {
            *r = (region){.of = tr__storage_ref(p->storage), .begin = begin, .end = end, .stale = true};
            m->n_regions++;
        }
        if (begin < r->begin) r->begin = begin;
        if (end > r->end) r->end = end;
        m->region_of[i] = at;
    }
    for (int i = 0; i < m->n_regions; i++) {
        region *r = &m->regions[i];
        r->copy = tr_keep(tr__tensor_new(TR_SHAPE((int64_t)(r->end - r->begin)), TR_U8, m->device));
        TR__TRY(tr_status_of(r->copy));
    }
    return TR_OK;
}

static tr_status refresh(tr__mirror *m)
{
    if (!fits(m)) {
        tr_status status = lay_out(m);
        if (status != TR_OK) forget(m);
        TR__TRY(status);
    }
    for (int i = 0; i < tr_list_count(m->parameters); i++) {
        unsigned version = tr__version(tr_list_at(m->parameters, i));
        m->regions[m->region_of[i]].stale |= version != m->versions[i];
        m->versions[i] = version;
    }
    for (int i = 0; i < m->n_regions; i++) {
        region *r = &m->regions[i];
        if (!r->stale) continue;
        if (r->end > r->begin)
            TR__TRY(tr__device_copy(m->device, tr__ptr(r->copy), r->of->device,
                (char *)r->of->data + r->begin, r->end - r->begin));
        tr__touch(r->copy);
        r->stale = false;
    }
    return TR_OK;
}

/* Each is a view of its region's copy, which is of bytes. */
static tr_status set_leaves(tr__mirror *m, tr_tensor **leaves)
{
    TR__TRY(refresh(m));
    for (int i = 0; i < tr_list_count(m->parameters); i++) {
        const tr_tensor *p = tr_list_at(m->parameters, i);
        const region *r = &m->regions[m->region_of[i]];
        int64_t begin = (int64_t)(r->begin / tr_dtype_size(p->dtype));
        tr_tensor *leaf = leaves[i] = tr_keep(tr__tensor_view(r->copy, p->shape, p->stride, p->offset - begin));
        TR__TRY(tr_status_of(leaf));
        leaf->dtype = p->dtype;
        if (p->requires_grad) TR__TRY(tr_status_of(tr_require_grad(leaf)));
    }
    return TR_OK;
}

tr_status tr__mirror_leaves(tr__mirror *m, tr_tensor **leaves)
{
    TR_SCOPE;
    pthread_mutex_lock(&m->lock);
    tr_status status = set_leaves(m, leaves);
    pthread_mutex_unlock(&m->lock);
    return status;
}
