/*
 * What all optimizers share. An optimizer is a rule that updates a run of elements; which runs there are is found here:
 *
 *   parameters  [ p0 ........ | p1 .. | p2 ............ ]   an arena (autograd/arena.h)
 *   gradients   [ g0 ........ | g1 .. | g2 ............ ]
 *   state       [ m0 ........ | m1 .. | m2 ............ ]   up to three flat tensors, made here: f32 (f64 for f64), or bf16 on
 *                                                           request (bf16_state.h)
 *
 * Neighbours in an arena that have gradients and are to be treated alike become one run, gaps included: usually a step
 * is a single pass over the arena.
 */
#ifndef TR_OPTIM_OPTIMIZER_H
#define TR_OPTIM_OPTIMIZER_H

#include "autograd/arena.h"
#include "base/given.h"
#include "tensor/list.h"

#include <trireme/optim.h>

enum { TR__STATES = 3 };

/* A run of elements: parameters, gradients, and the state that belongs to them. */
typedef struct tr__update {
    const tr_optimizer *optimizer;
    const tr_tensor *leaf; /* the run's first parameter; of rules that take whole ones its only one */
    int64_t count;
    int64_t place; /* of its first element in the arena */
    void *parameters;
    const void *gradients;
    void *state[TR__STATES]; /* NULL after the last */
    int64_t step;        /* these parameters' own, from 1 */
    double lr;
    double weight_decay; /* 0 where there is none */
    double factor;         /* what the rule's prepare() makes of these two */
    const void *direction; /* [count], of the state's type */
    /* The same as tensors, for the kernels of other devices than the CPU, which must not read the memory above: NULL there. */
    struct {
        tr_tensor *parameters, *gradients, *state[TR__STATES], *direction;
    } on_device;
} tr__update;

/* Updates elements [begin, end) of a run; and one that adds two sums over them to sums. */
typedef void (*tr__update_kernel)(const tr__update *update, int64_t begin, int64_t end);
typedef void (*tr__measure_kernel)(const tr__update *update, int64_t begin, int64_t end, double sums[2]);

typedef struct tr__optimizer_rule {
    const char *name;                         /* "adamw" */
    const char *state_names[TR__STATES];      /* "exp_avg"; NULL after the last */
    tr__update_kernel kernel[TR_DTYPE_COUNT]; /* on the CPU; NULL: not for this dtype. Other devices have NAME_step */
    tr__measure_kernel measure[TR_DTYPE_COUNT]; /* for tr__measure(). Other devices have NAME_measure */
    /* What the kernel needs to know of the run before it starts; NULL: nothing. What it makes belongs to the innermost
     * scope. */
    tr_status (*prepare)(tr__update *update);
    bool whole;     /* not elementwise: takes one whole parameter at a time */
    int dimensions; /* parameters must have that many; 0: any */
} tr__optimizer_rule;

/* The values that a rule is made with: the two that all have, then its own. The last is whether the state is bf16; where it has no
 * name, the rule cannot have that. The order is part of the interface of device kernels (trireme/kernels.h). */
enum { TR__LR, TR__DECAY, TR__OWN, TR__BF16_STATE = 7, TR__HYPERS };

typedef enum tr__domain {
    TR__FLAG,     /* anything */
    TR__FINITE,
    TR__AMOUNT,   /* 0 or more, and finite */
    TR__FRACTION, /* [0, 1) */
    TR__SHARE,    /* [0, 1] */
    TR__POSITIVE, /* more than 0, also in f32, and finite */
    TR__DOMAINS
} tr__domain;

typedef struct tr__hyper {
    const char *name; /* NULL: there is none */
    double value;
    tr__domain domain;
} tr__hyper;

/* A parameter, as a stretch of its arena. */
typedef struct tr__optimized {
    tr_tensor *leaf;       /* held by the list */
    int part;              /* in optimizer->parts */
    int64_t offset, count; /* in the arena */
    int64_t steps;         /* updates so far: as in PyTorch each parameter counts its own */
    double lr_scale, weight_decay; /* its group's */
} tr__optimized;

/* Parameters that lie in an arena without others between them: elements [begin, end), from the first one to the last. Others'
 * are in no part: what is done to a whole part, as when ranks share it, leaves them alone. */
typedef struct tr__optimizer_part {
    tr__arena *arena; /* a reference */
    int64_t begin, end;
    int64_t from, to; /* of these, the ones that are updated here: all, unless ranks share the work */
    tr_tensor *state[TR__STATES]; /* references; [to - from] */
} tr__optimizer_part;

/* Of an optimizer that steps in backward (in_backward.c). */
typedef struct tr__in_backward tr__in_backward;

struct tr_optimizer {
    tr__object object;
    const tr__optimizer_rule *rule;
    int n_states;
    double lr;
    double settings[TR__HYPERS]; /* as they were given */
    const char *setting_names[TR__HYPERS]; /* NULL: there is none */

    tr_tensor_list *list; /* the parameters with their names, in the order they were given */
    int *place;           /* of list entry i in parameters */
    tr__optimized *parameters; /* by part and offset */
    int count;
    tr__optimizer_part *parts;
    int n_parts;

    /* How ranks share the work (parallel/sharded.c); NULL: they do not. gather() makes flat, [end - begin] of a part of which
     * every rank has its shard, whole on all ranks. give_up(): this rank will not, for the thread's latest failure. */
    tr_status (*gather)(void *sharing, const tr__optimizer_part *part, tr_tensor *flat);
    void (*give_up)(void *sharing);
    void *sharing; /* a reference to an object */

    tr__in_backward *in_backward; /* NULL: it steps in tr_step() */

    struct {
        uint64_t scope; /* that the latest step was made in */
        size_t held;    /* its objects then; */
        int steps;      /* so many steps on end in it, each with more objects than the one before */
        size_t held_first;
        int64_t bytes;  /* of the device's memory in use at the first of them */
        bool told;
    } scope_watch;
};

/* Makes an optimizer: checks values and parameters, lays these out, makes zeroed state. decay_matrices_only: no weight
 * decay for parameters with fewer than two dimensions. */
tr_optimizer *tr__optimizer_new(const tr__optimizer_rule *rule, const tr_tensor_list *parameters,
    const tr__hyper hypers[TR__HYPERS], bool decay_matrices_only);
/* 0 or more, and finite. */
bool tr__is_amount(double x);

/* Adds two sums over `count` elements, of which add() adds those of [begin, end). Blocks and their order are fixed, so that
 * the sums do not depend on how many threads there are. */
typedef void (*tr__sum_function)(const void *arg, int64_t begin, int64_t end, double sums[2]);
tr_status tr__sum_blocks(tr__pool *pool, int64_t count, tr__sum_function add, const void *arg, double sums[2]);
/* Two such sums over all elements of a run, by the rule's measure kernel. */
tr_status tr__measure(const tr__update *update, double sums[2]);
/* The square of the joint norm of all gradients, those of other ranks' shards and stages among them; not finite when one of them
 * is not. *worst: the first parameter of this rank's whose own is not, or NULL. Collective where there are such ranks (clip.c): they
 * hear of a failure that this rank has had before, which is `own`. */
tr_status tr__grad_squares(const tr_optimizer *o, tr_status own, double *total, const char **worst);
/* The norm of each parameter's own gradient, in the order of the list; 0 where there is none. norms: [count] */
tr_status tr__grad_norms(const tr_optimizer *o, double *norms);
/* Scales gradients whose joint norm is `norm` so that it is at most max_norm. */
tr_status tr__grad_limit(const tr_optimizer *o, double norm, double max_norm);
/* All gradients times factor. */
tr_status tr__grad_multiply(const tr_optimizer *o, double factor);
/* Adds the squares of a gradient on the CPU, contiguous, block by block; those of a parameter's rows in order make the parameter's
 * where the rows are whole blocks, else they may differ from it in the last bits. */
tr_status tr__squares_add(const tr_tensor *gradient, double *sum);
/* Sums of squares of n elements, in f64. */
double tr__squares_f32(const void *x, int64_t n);
double tr__squares_f64(const void *x, int64_t n);

/* A run of neighbours that have gradients: parameters [first, last], elements [begin, end) of the arena. */
typedef struct tr__stretch {
    const tr__optimizer_part *part;
    int first, last;
    int64_t begin, end;
} tr__stretch;
/* The next run at or after *at, which moves past it; false when there are no more. alike: only neighbours that one call of
 * the rule's kernel can update, with the same step count, learning rate and decay. */
bool tr__next_stretch(const tr_optimizer *optimizer, bool alike, int *at, tr__stretch *out);

/* Returns status. If ranks share the work, tells them of a failure, because they wait for this rank. */
tr_status tr__optimizer_tell(const tr_optimizer *optimizer, tr_status status);
/* Updates the parameter of list entry i alone, or parameters[at], by the gradient that it has; not where ranks share the work. */
tr_status tr__step_one(tr_optimizer *optimizer, int i);
tr_status tr__step_at(tr_optimizer *optimizer, int at);
/* Updates rows of parameters[at], from row `first` on, by their gradient: all of them in order make one step. */
tr_status tr__step_rows(tr_optimizer *optimizer, int at, const tr_tensor *gradient, int64_t first);
/* What is left of a step that was made in backward, or a failure when that one failed. */
tr_status tr__in_backward_step(tr_optimizer *optimizer);
/* For who owns the training loop. Paused: until it goes on, backwards leave their gradients at the parameters, and update none. */
void tr__in_backward_pause(tr_optimizer *optimizer, bool paused);
/* A step begins, whatever became of the one before. measures: until the next call backwards sum the squares of each gradient, which
 * tr__grad_squares() and tr__grad_norms() then have, and when one is not finite, neither its parameter nor those after it are
 * updated; of one whose gradient comes by blocks of rows, those before the block that is not finite are. On the CPU only. */
void tr__in_backward_measure(tr_optimizer *optimizer, bool measures);
/* The squares that were measured of the gradient of parameters[at]; 0: none were. */
double tr__in_backward_squares(const tr_optimizer *optimizer, int at);
/* The list entry whose gradient ended the updates of the latest backward, and how many had been updated before, and how many of its
 * own rows; -1: none did. */
int tr__in_backward_stopped_at(const tr_optimizer *optimizer, int *updated, int64_t *rows);
/* The optimizer goes, and leaves its parameters' gradients alone. */
void tr__in_backward_end(tr_optimizer *optimizer);
/* A failure when the optimizer steps in backward, as `what` cannot have it, for that reason. */
tr_status tr__in_backward_refuse(const tr_optimizer *optimizer, const char *what, const char *why);

extern const tr__type tr__optimizer_type;
#define tr__optimizer_fail(...) ((tr_optimizer *)tr__object_fail(&tr__optimizer_type, __VA_ARGS__))

#endif
