/* What pipelines and trainers need of DDP. */
#ifndef TR_PARALLEL_DDP_H
#define TR_PARALLEL_DDP_H

#include <trireme/parallel.h>

/* tr_ddp_sync() of what tr_ddp() returned; of any other module nothing. Returns what it was before: on or off. */
bool tr__ddp_exchange(tr_module *module, bool on);
/* The group that its backward talks to; NULL: to none, or it is not what tr_ddp() returned. */
const void *tr__ddp_group(const tr_module *module);

/* Are this rank's own gradients to be measured in backwards from now on, before they are averaged? Not in detached ones. */
void tr__ddp_measure(tr_module *ddp, bool on);
/* The sum of their squares in the latest backward. */
double tr__ddp_own_squares(const tr_module *ddp);

#endif
