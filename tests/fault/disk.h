/*
 * A model of a disk below a folder: which bytes of its files and which entries of its folders are there after a crash.
 *
 * What POSIX promises, and no more: the bytes of a file are there when it was synced, and an entry of a folder (a file made,
 * removed or renamed in it) when that folder was synced. Of all that was not synced, a crash leaves a part that is drawn: of
 * each folder the first n changes, of each file any of its pages of 4 KiB, the others as they were at the latest sync, and
 * zero behind its end.
 *
 * One thread uses it at a time.
 */
#ifndef DISK_H
#define DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

/* All that is below the folder now is on the disk. */
void disk_begin(const char *folder);
/* Is it a file or folder below the folder, that was opened after disk_begin()? */
bool disk_knows(int fd);
/* Would the path, below the folder of the descriptor when it is relative, lead there? */
bool disk_has_path(int folder_fd, const char *path);

/* After calls that went well. */
void disk_opened(int fd, int folder_fd, const char *path);
void disk_closed(int fd);
void disk_synced(int fd);
void disk_made_folder(int folder_fd, const char *path);
void disk_removed(int folder_fd, const char *path);
void disk_renamed(int from_fd, const char *from, int to_fd, const char *to, bool exchange);

/* Makes the folder what a crash would leave. False with the reason in `wrong` when the model does not fit what is there. */
bool disk_crash(uint64_t draw, char *wrong, size_t bytes);

#endif
