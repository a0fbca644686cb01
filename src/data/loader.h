/* What evaluation asks of a loader besides. */
#ifndef TR_DATA_LOADER_H
#define TR_DATA_LOADER_H

#include <trireme/data.h>

/* The next batch is the first of the epoch that is under way, or of the next one when none is. */
void tr__loader_rewind(tr_loader *loader);

#endif
