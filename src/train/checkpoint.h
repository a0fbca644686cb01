/* What trainers need of checkpoints beyond the public functions. */
#ifndef TR_TRAIN_CHECKPOINT_H
#define TR_TRAIN_CHECKPOINT_H

#include "train/manifest.h"

#include <trireme/train.h>

/* File names in a checkpoint; the last one only with metrics. */
enum { TR__MODEL_FILE, TR__STATE_FILE, TR__HISTORY_FILE, TR__CHECKPOINT_FILES };
extern const char *const tr__checkpoint_files[TR__CHECKPOINT_FILES];

enum { TR__MOST_KEPT = 1000 }; /* checkpoints in a folder */

/* The step in a folder's name, or -1. */
int64_t tr__checkpoint_named_step(const char *path);
/* The manifest of a checkpoint, which is to be of the step that the folder's name says; to be freed also after a failure. known:
 * is there one? Checkpoints from elsewhere have none, and nothing of them can be verified. */
tr_status tr__checkpoint_manifest(const char *path, tr__manifest *manifest, bool *known);

/* Locks an open folder against other savers and trainings for as long as it is open; false: one of them has locked it. Where the
 * file system has no locks, everybody may go on. */
bool tr__checkpoint_lock(int folder_fd);
/* Puts back what a killed save was replacing. TR_STATE when an open folder holds a checkpoint of a later step: to save the steps of
 * another training, or those behind, would let the two mix. Only what a resumption has passed over is set aside under another name:
 * later ones that are all damaged, where one before them is whole. folder: its path, for messages. */
tr_status tr__checkpoint_make_room(int folder_fd, const char *folder, int64_t step);
/* tr_checkpoint_save() into a folder that is open, which still has to be found under the options' name. */
tr_status tr__checkpoint_save(int folder_fd, const tr_checkpoint_save_options *options);
/* tr_checkpoint_load() with the rows that were saved as its metrics (NULL when there were none). state and history may be NULL. */
tr_status tr__checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state, tr_tensor_list **history);
/* As tr_checkpoint_find_whole(). path: at least PATH_MAX bytes. *damaged: how many newer ones it passed over. */
tr_status tr__checkpoint_load_newest(const char *folder, char *path, int64_t *step, int64_t *damaged, tr_tensor_list **model,
    tr_tensor_list **state, tr_tensor_list **history);
/* Removes what a killed process left: a checkpoint half saved or half removed. */
void tr__checkpoint_clear_away(int folder_fd, const char *folder);

#endif
