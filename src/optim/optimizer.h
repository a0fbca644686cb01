/*
 * What all optimizers share. An optimizer is a rule that updates a run of elements; which runs there are is found here:
 *
 *   parameters  [ p0 ........ | p1 .. | p2 ............ ]   an arena (autograd/arena.h)
 *   gradients   [ g0 ........ | g1 .. | g2 ............ ]
 *   state       [ m0 ........ | m1 .. | m2 ............ ]   up to three flat tensors, made here: f32 (f64 for f64)
 *
 * Neighbours in an arena that have gradients and are to be treated alike become one run, gaps included: usually a step
 * is a single pass over the arena.
 */
#ifndef TR_OPTIM_OPTIMIZER_H
#define TR_OPTIM_OPTIMIZER_H

#include "autograd/arena.h"
#include "tensor/list.h"

#include <trireme/optim.h>

enum { TR__STATES = 3 };

/* A run of elements: parameters, gradients, and the state that belongs to them. */
typedef struct tr__update {
    const tr_optimizer *optimizer;
    void *parameters;
    const void *gradients;
    void *state[TR__STATES]; /* NULL after the last */
    int64_t step;        /* these parameters' own, from 1 */
    double weight_decay; /* 0 where there is none */
} tr__update;

/* Updates elements [begin, end) of a run. */
typedef void (*tr__update_kernel)(const tr__update *update, int64_t begin, int64_t end);

typedef struct tr__optimizer_rule {
    const char *name;                         /* "adamw" */
    const char *state_names[TR__STATES];      /* "exp_avg"; NULL after the last */
    tr__update_kernel kernel[TR_DTYPE_COUNT]; /* on the CPU; NULL: not for this dtype */
} tr__optimizer_rule;

/* A parameter, as a stretch of its arena. */
typedef struct tr__optimized {
    tr_tensor *leaf;       /* held by the list */
    int part;              /* in optimizer->parts */
    int64_t offset, count; /* in the arena */
    int64_t steps;         /* updates so far: as in PyTorch each parameter counts its own */
    bool decays;
} tr__optimized;

/* What an optimizer has of one arena: elements [begin, end), from its first parameter to its last. */
typedef struct tr__part {
    tr__arena *arena; /* a reference */
    int64_t begin, end;
    int64_t from, to; /* of these, the ones that are updated here: all, unless ranks share the work */
    tr_tensor *state[TR__STATES]; /* references; [to - from] */
} tr__part;

struct tr_optimizer {
    tr__object object;
    const tr__optimizer_rule *rule;
    int n_states;
    double lr, weight_decay;
    double settings[4]; /* the rule's own */

    tr_tensor_list *list; /* the parameters with their names, in the order they were given */
    int *place;           /* of list entry i in parameters */
    tr__optimized *parameters; /* by part and offset */
    int count;
    tr__part *parts;
    int n_parts;

    /* How ranks share the work (parallel/sharded.c); NULL: they do not. gather() makes flat, [end - begin] of a part of which
     * every rank has its share, whole on all ranks. */
    tr_status (*gather)(void *sharing, const tr__part *part, tr_tensor *flat);
    void *sharing; /* a reference to an object */
};

/* Makes an optimizer: checks the parameters, lays them out, makes zeroed state. The caller sets lr, weight_decay and
 * settings. decay_matrices_only: no weight decay for parameters with fewer than two dimensions. */
tr_optimizer *tr__optimizer_new(const tr__optimizer_rule *rule, const tr_tensor_list *parameters,
    bool decay_matrices_only);

/* A run of neighbours that have gradients: parameters [first, last], elements [begin, end) of the arena. */
typedef struct tr__stretch {
    const tr__part *part;
    int first, last;
    int64_t begin, end;
} tr__stretch;
/* The next run at or after *at, which moves past it; false when there are no more. alike: only neighbours with the same
 * step count and decay. */
bool tr__next_stretch(const tr_optimizer *optimizer, bool alike, int *at, tr__stretch *out);

/* An option's value: what was given, TR_ZERO as 0, otherwise for 0. */
double tr__option(double given, double otherwise);
extern const tr__type tr__optimizer_type;
#define tr__optimizer_fail(...) ((tr_optimizer *)tr__object_fail(&tr__optimizer_type, __VA_ARGS__))

#endif
