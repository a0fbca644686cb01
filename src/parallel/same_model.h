/* Ranks that are to have the same tensors and optimizers. */
#ifndef TR_PARALLEL_SAME_MODEL_H
#define TR_PARALLEL_SAME_MODEL_H

#include "comm/group/agree.h"

#include <trireme/nn.h>
#include <trireme/optim.h>

/* Says how many tensors a list has and what each is, under "tensor 1" and on: its name, dtype and shape, and whether it requires a
 * gradient. */
void tr__tensors_say(const tr_tensor_list *list, tr__facts *facts);

/* Says what a model is made of, under "model.PATH": each module's kind and detail, and with `tensors` also each parameter's
 * and buffer's dtype and shape. The model itself, and what a wrapper has under its own path, are left out. */
tr_status tr__parts_say(tr_module *model, bool tensors, tr__facts *facts);

/* Says an optimizer's rule under "optimizer", and under "optimizer.beta1" and the like its settings but the learning rate, which
 * schedules set; and its parameters and groups. */
void tr__optimizer_say(const tr_optimizer *optimizer, tr__facts *facts);

#endif
