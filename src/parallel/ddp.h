/* What pipelines need of DDP. */
#ifndef TR_PARALLEL_DDP_H
#define TR_PARALLEL_DDP_H

#include <trireme/parallel.h>

/* tr_ddp_sync() of what tr_ddp() returned; of any other module nothing. Returns what it was before: on or off. */
bool tr__ddp_exchange(tr_module *module, bool on);

#endif
