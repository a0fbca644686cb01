/* Folders that are made when they are first needed. */
#ifndef TR_BASE_FOLDER_H
#define TR_BASE_FOLDER_H

#include <trireme/base.h>

#include <limits.h>

/* Makes a folder and those that lead to it, and brings their names to the disk; TR_OK when it is there already. */
tr_status tr__folder_make(const char *path);
/* "folder/name"; TR_INVALID where that is longer than paths can be. */
tr_status tr__path_join(char path[PATH_MAX], const char *folder, const char *name);

#endif
