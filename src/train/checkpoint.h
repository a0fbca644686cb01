/* What a training does with checkpoints besides saving and loading them by a folder's name. */
#ifndef TR_TRAIN_CHECKPOINT_H
#define TR_TRAIN_CHECKPOINT_H

#include "base/object.h"

#include <trireme/train.h>

/* The highest step of the checkpoints in a folder that is open; -1 when there is none. folder: its path, for messages. */
tr_status tr__checkpoint_newest(int folder_fd, const char *folder, int64_t *step);
/* tr_checkpoint_save() into a folder that is open, which still has to be found under the options' name. */
tr_status tr__checkpoint_save(int folder_fd, const tr_checkpoint_save_options *options);
/* tr_checkpoint_load() with the rows that were saved as its metrics (NULL when there were none). state and history may be NULL. */
tr_status tr__checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state, tr_tensor_list **history);
/* The newest that is whole, as tr_checkpoint_find_whole() finds it. path: at least PATH_MAX bytes. */
tr_status tr__checkpoint_load_newest(const char *folder, char *path, int64_t *step, tr_tensor_list **model, tr_tensor_list **state,
    tr_tensor_list **history);
/* Gives a damaged checkpoint another name, so that it is no longer one. TR_STATE when it is whole. */
tr_status tr__checkpoint_set_damaged_aside(int folder_fd, const char *folder, int64_t step);

#endif
