/* The struct of tr_trainer. */
#ifndef TR_TRAIN_TRAINER_H
#define TR_TRAIN_TRAINER_H

#include "base/object.h"

#include <trireme/optim.h>
#include <trireme/train.h>

struct tr_trainer {
    tr__object object;
    tr_trainer_options options; /* with defaults filled in, model, text and group kept */
    tr_module *net;             /* kept; the model, or DDP around it */
    tr_optimizer *optimizer;    /* kept */
    int rank, world_size;
    int64_t first, share;       /* this rank's windows of each batch: [first, first + share) */
    int64_t step;               /* steps done */

    /* What a checkpoint holds besides. */
    double seconds;
    double validation_loss, best_validation_loss; /* NaN: not yet */

    bool common_failure; /* see tr_fit_report */
};

/* What rank 0 did or failed to do: TR_OK on every rank, or rank 0's failure there and TR_PEER elsewhere. */
tr_status tr__trainer_agree(tr_trainer *trainer, tr_status status, const char *what);
/* In trainer_state.c: model and optimizer as the checkpoint at options.resume has them, on every rank. */
tr_status tr__trainer_resume_model(tr_trainer *trainer, tr_tensor_list **state);
tr_status tr__trainer_resume_state(tr_trainer *trainer, const tr_tensor_list *state);

#endif
