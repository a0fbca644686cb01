/* Switches to eval mode and back: afterwards every module has its former mode. */
#ifndef TR_TRAIN_EVAL_MODE_H
#define TR_TRAIN_EVAL_MODE_H

#include "base/object.h"

#include <trireme/nn.h>

typedef struct tr__modes {
    bool *training; /* which modules were, in the order of a walk */
    size_t count, room, at;
} tr__modes;

/* After a failure there is nothing to end. */
tr_status tr__eval_begin(tr__modes *modes, tr_module *net);
void tr__eval_end(tr__modes *modes, tr_module *net);

#endif
