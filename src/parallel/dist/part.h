/* A worker's part in a backward: what backward.c and root.c share. */
#ifndef TR_PARALLEL_DIST_PART_H
#define TR_PARALLEL_DIST_PART_H

#include "parallel/dist/dist.h"

/* A MARK, until those that it caused have been answered. */
typedef struct tr__marking {
    void *call;         /* to be answered; NULL: the root's, */
    struct tr__item *roots; /* which comes next then */
    int waiting;        /* for so many answers, and for its own walk */
} tr__marking;

/* What a part's inbox takes besides messages. */
enum { TR__DIST_ENGAGE = TR__DIST_KINDS, TR__DIST_ROOTS };

/* What waits there. */
typedef struct tr__item {
    struct tr__item *next;
    int kind; /* of a message, or one of those */
    tr__marking *marking; /* MARK */
    int n_gradients;
    tr_tensor *gradients[TR__DIST_TENSORS]; /* kept */
    int n_numbers;
    int64_t numbers[];
} tr__item;

/* Something that was sent, by the worker and its number there. */
typedef struct tr__found {
    int worker;
    int64_t number;
} tr__found;

typedef struct tr__dist_part {
    atomic_int refs;
    tr_dist_context *context; /* which holds the part; whoever calls a function here holds it */
    int64_t pass;
    bool smart, retain;
    tr__gradient_sink sink;
    tr__call_site site; /* of the root's tr_dist_backward(), for all threads that run the part */
    int n_roots;
    tr_tensor **roots, **root_gradients; /* kept */

    /* Of the thread that is running it. */
    tr__backward *engine; /* NULL: freed, under the lock */
    tr__found *found; /* what the engine met at the border of the graph */
    int n_found;
    size_t found_room;

    /* Under the context's lock. */
    bool running, engaged, over;
    bool finishing, finished; /* what hooks have left to be done at the end of the graph here: going on; done */
    bool interrupting;        /* a thread ends its waiting */
    void *parent;      /* the call that engaged it, to be answered; NULL: it has been, or this is the root */
    int parent_worker;
    int outstanding;   /* answers that it waits for */
    tr__item *first, **last;
    tr__error *error;  /* why it failed */
    pthread_cond_t ended; /* or, at the root, marked */
} tr__dist_part;

/* A part of a pass, with a reference of the caller's; NULL without memory. */
tr__dist_part *tr__part_new(tr_dist_context *context, int64_t pass, bool smart, bool retain);
tr__dist_part *tr__part_ref(tr__dist_part *part);
/* That of the context's latest backward here, with a reference of the caller's; NULL: there was none. */
tr__dist_part *tr__part_of(tr_dist_context *context);
tr_status tr__part_no_memory(void);
/* Ends the part with this thread's latest failure, unless it is over. */
void tr__part_fail(tr__dist_part *part, tr_status status);

/* For the inbox. NULL without memory. */
tr__item *tr__part_item(int kind, const int64_t *numbers, int n_numbers);
/* Under the context's lock. */
void tr__part_push(tr__dist_part *part, tr__item *item);
/* Takes items out of the inbox, unless another thread is at it: then that one does. */
void tr__part_drain(tr__dist_part *part);

#endif
