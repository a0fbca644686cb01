/* oneDNN's primitives, kept by what they compute: making one takes a tenth of a millisecond and more. */
#ifndef TR_OPS_ONEDNN_PRIMITIVE_H
#define TR_OPS_ONEDNN_PRIMITIVE_H

#include "ops/onednn/api.h"

#include "base/object.h"

/* What a primitive computes: all numbers count when two are compared. */
enum { TR__PRIMITIVE_NUMBERS = 16, TR__PRIMITIVE_PARTS = 5 };
typedef struct tr__primitive_key {
    enum {
        TR__DNNL_MATMUL,
        TR__DNNL_CONV_FORWARD,
        TR__DNNL_CONV_GRAD_INPUT,
        TR__DNNL_CONV_GRAD_WEIGHT,
        TR__DNNL_TO_CONV_WEIGHT,   /* from a plain weight to the layout that a convolution takes; */
        TR__DNNL_FROM_CONV_WEIGHT, /* and back; the numbers are the convolution's, then its kind */
    } kind;
    bool accumulate; /* it adds to what is there */
    int64_t number[TR__PRIMITIVE_NUMBERS];
} tr__primitive_key;

typedef struct tr__primitive {
    tr__primitive_key key;
    atomic_int refs;
    uint64_t used;              /* when last, by the cache's clock */
    dnnl_primitive_t primitive; /* NULL: oneDNN has no fast one */
    int parts;                  /* what it is run on, the scratchpad not counted: set by its maker */
    int argument[TR__PRIMITIVE_PARTS + 1];
    tr__dnnl_desc desc[TR__PRIMITIVE_PARTS + 1];
    char text[160];
} tr__primitive;

/* Fills in the parts of p, whose key is set, and makes the description of what it computes, with these attributes. p->text tells
 * it in the log; "": a reorder, which has no slow implementation. */
typedef dnnl_status_t (*tr__primitive_maker)(tr__primitive *p, dnnl_engine_t engine, const void *user, dnnl_primitive_attr_t attr,
    dnnl_primitive_desc_t *desc);

/* From the cache, or made: one reference for the caller. *out is NULL, with TR_DECLINED, where oneDNN has nothing but a slow
 * reference implementation. what: the op, for failures. Thread-safe. */
tr_status tr__primitive_get(const char *what, const tr__primitive_key *key, tr__primitive_maker make, const void *user,
    tr__primitive **out);
void tr__primitive_unref(tr__primitive *p);
/* data: of each part, NULL where it is not used; index: of the device that has memory for the scratchpad. */
dnnl_status_t tr__primitive_run(const tr__primitive *p, const void *const *data, int index);

#endif
