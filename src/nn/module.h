/*
 * The struct of tr_module, and how its tree is walked. A wrapper (DDP, say) adds the module that it wraps under the
 * name "": such a child adds nothing to the paths, so the state dict is that of the wrapped module.
 */
#ifndef TR_NN_MODULE_H
#define TR_NN_MODULE_H

#include "tensor/list.h"

#include <trireme/nn.h>

typedef struct tr__module_entry {
    enum { TR__CHILD, TR__PARAMETER, TR__BUFFER } kind;
    char *name;
    union {
        tr_module *child; /* a reference */
        tr_tensor *tensor; /* a reference */
    };
    tr_tensor *whole; /* a reference: what the module computes with, where tensor is this rank's shard of it; else NULL */
} tr__module_entry;

/* Stands around a module's forward: run() calls tr__module_compute(), in a forward and where one is recomputed. */
typedef struct tr__around {
    tr__object object;
    tr_status (*run)(struct tr__around *around, tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs);
} tr__around;

/* How a module runs: in which mode, and what its dropouts draw from. */
typedef struct tr__mode {
    bool evaluating;
    bool seeded;                       /* by tr_seed() */
    uint64_t seed, path;               /* path: the hash of where it stands in the tree that was seeded */
    uint64_t step, first_sample;
} tr__mode;

struct tr_module {
    tr__object object;
    char *name;
    char *detail; /* by tr_module_detail(); NULL: none */
    void *state;
    size_t state_bytes;
    tr_forward_function forward;       /* NULL: a container, or: */
    tr_forward_many_function many;     /* with so many outputs; NULL: forward, which has one */
    int n_outputs;
    tr_tensor *(*layer)(tr_module *self, tr_tensor *x); /* what forward calls, of tr__layer_new()'s */
    void (*release)(void *state);      /* NULL, or gives back what state holds; run when the last reference goes */
    tr__module_entry *members;         /* in the order they were added */
    int count;
    size_t room;
    tr__mode mode;                     /* its own: see tr__mode_of() */
    bool recompute;                    /* its forward is a segment of the graph (ops/segment.h) */
    tr__around *around;                /* a reference; NULL: nothing */
    const void *meets;                 /* the group whose other ranks its forward waits for, kept by its state; or NULL */
};

extern const tr__type tr__module_type;

/* Calls module() for root and every module below it, and tensor() for their parameters and buffers, depth first, in the
 * order they were added. What stands in several places is visited in each. A failure ends the walk. */
typedef struct tr__walk {
    tr_status (*module)(struct tr__walk *walk, tr_module *module);           /* or NULL */
    tr_status (*tensor)(struct tr__walk *walk, const tr__module_entry *member); /* or NULL */
    void *user;
    char *path; /* of what is visited: "h.0.attn"; "" for the root */
    size_t length, capacity;
} tr__walk;
tr_status tr__module_walk(tr_module *root, tr__walk *walk);
/*
 * A module runs in its own mode, but for one that another worker calls: that runs as the caller's module, on the calling thread,
 * with all below it. It evaluates if either of the two does, and draws what it would draw if it stood in the caller's tree, if that
 * was seeded. tr__mode_lend() gives back what was lent before.
 */
typedef struct tr__lent_mode {
    tr_module *root;
    tr__mode mode;
} tr__lent_mode;
const tr__lent_mode *tr__mode_lend(const tr__lent_mode *lent);
/* This thread runs a micro-batch that begins so many samples behind its batch's first one: its dropouts count from there. Returns
 * what it was. */
uint64_t tr__samples_before(uint64_t samples);
bool tr__caller_evaluates(void);
bool tr__evaluates(const tr_module *module);
tr__mode tr__mode_of(const tr_module *module);

/* The module's own forward alone; sets all outputs. */
tr_status tr__module_compute(tr_module *module, tr_tensor *const *inputs, int n, tr_tensor **outputs);

/* What messages put before a path of root's, with a dot between: the root's name, as "sequential", where the path begins with a
 * number; else nothing (""). */
const char *tr__path_root(const tr_module *root, const char *path);

/*
 * A copy of a module's tree, to be run beside the original on another device. Its parameters are leaves: leaves[i] for entry
 * i of parameters, tr_parameters(module), where the caller has set them; else, on a device that reaches their memory, they are
 * new ones over it, and leaves[] is set to them with references of the caller's. Its buffers are copies (on the original's own
 * device: the buffers themselves), and its dropouts count samples from first_sample on. Pointers to parts of the tree in
 * modules' states become pointers to the copy's.
 */
tr_module *tr__module_replica(tr_module *module, tr_device device, int64_t first_sample, const tr_tensor_list *parameters,
    tr_tensor **leaves);

/* How a batch norm computes in training instead of tr_batch_norm_op(). */
typedef tr_tensor *tr__normalizer(const tr_batch_norm_op_options *options, void *user);
/* Makes a module compute so, if it is one: it takes a reference to user. Returns whether it is. */
bool tr__batch_norm_replace(tr_module *module, tr__normalizer *normalize, void *user);

/* Fails as a module that takes one input and got n, or NULL. */
tr_tensor *tr__missing_input(const tr_module *self, int n);
/* A module of one input, which is there when layer is called. */
typedef tr_tensor *tr__layer(tr_module *self, tr_tensor *x);
tr_module *tr__layer_new(const char *name, size_t state_bytes, tr__layer *layer);
/* The same, whose state is that one. */
tr_module *tr__layer_of(const char *name, const void *state, size_t state_bytes, tr__layer *layer);

/* Fresh tensors with random values from seed, the same on every machine; drawn and scaled in f32. */
tr_tensor *tr__init_normal(tr_shape shape, tr_dtype dtype, uint64_t seed, double std);
tr_tensor *tr__init_uniform(tr_shape shape, tr_dtype dtype, uint64_t seed, double bound); /* [-bound, bound) */

/* The seed in a layer's options, or else the thread's next. */
uint64_t tr__seed_of(const void *options, uint64_t seed);

/* The initialization of a layer with weight and bias. */
typedef struct tr__affine_start {
    tr_shape weight;
    int64_t out, fan_in; /* outputs; inputs of each */
    bool normal;         /* weight normal(0, std) and zero bias; else both uniform in 1/sqrt(fan_in), as PyTorch's */
    double std;
    bool no_bias;
    uint64_t seed;
    tr_dtype dtype;
} tr__affine_start;
/* Adds "weight" and "bias"; *bias stays as it is without one. */
void tr__init_affine(tr_module *module, const tr__affine_start *start, tr_tensor **weight, tr_tensor **bias);

#endif
