/* What a profile is written as. */
#ifndef TR_TRAIN_PROFILE_FILES_H
#define TR_TRAIN_PROFILE_FILES_H

#include <trireme/nn.h>

/* Writes the profile that was stopped: FOLDER/profile-rankR.trace.json, for Chrome's viewer and Perfetto, and
 * FOLDER/profile-rankR.txt, tables of steps, modules and ops. Modules are called by their paths in net. */
tr_status tr__profile_write(const char *folder, int rank, tr_module *net);

#endif
