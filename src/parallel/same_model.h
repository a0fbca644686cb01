/* Ranks that are to have the same tensors and optimizers. */
#ifndef TR_PARALLEL_SAME_MODEL_H
#define TR_PARALLEL_SAME_MODEL_H

#include "comm/agree.h"

#include <trireme/nn.h>
#include <trireme/optim.h>

/* Do the lists of all ranks have the same names, dtypes and shapes in the same order, and require gradients alike? Else
 * fails with TR_MISMATCH on all ranks, in the same words, which name the first difference: "ddp: the parameters and
 * buffers of ranks 0 and 1 differ: …". Collective; a number per rank travels as long as they agree. */
tr_status tr__ranks_agree(tr_group *group, const tr_tensor_list *list, const char *who, const char *what);

/* Says what a model is made of, under "model.PATH": each module's kind and detail, and with `tensors` also each parameter's
 * and buffer's dtype and shape. The model itself, and what a wrapper has under its own path, are left out. */
tr_status tr__parts_say(tr_module *model, bool tensors, tr__facts *facts);

/* Says an optimizer's rule under "optimizer", and under "optimizer.beta1" and the like its settings but the learning rate, which
 * schedules set; and its parameters and groups. */
void tr__optimizer_say(const tr_optimizer *optimizer, tr__facts *facts);

#endif
