/* What a folder holds already. */
#ifndef TR_TRAIN_CHECKPOINT_H
#define TR_TRAIN_CHECKPOINT_H

#include "base/object.h"

/* The highest step of the checkpoints in a folder that is open; -1 when there is none. folder: its path, for messages. */
tr_status tr__checkpoint_newest(int folder_fd, const char *folder, int64_t *step);

#endif
