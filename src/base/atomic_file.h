/*
 * Files that are replaced whole or not at all: written to a temporary file beside the old one, synced, renamed over it.
 *
 * A writer holds a lock on its temporary file, so that the next one can tell the leftovers of a killed process (nobody
 * locks them: they are removed) from the work of a living one.
 */
#ifndef TR_BASE_ATOMIC_FILE_H
#define TR_BASE_ATOMIC_FILE_H

#include <trireme/base.h>

#include <sys/types.h>

typedef struct tr__atomic_file {
    char *path; /* what is replaced, for messages */
    char *folder;
    const char *name;    /* the last part of path, inside it */
    char temporary[288]; /* in folder */
    int fd, folder_fd;
    off_t unsynced; /* bytes at the end of what is written that the kernel has not been told to write to the disk */
} tr__atomic_file;

/* After a failure of any of these the file is closed and the temporary one gone; what stood at path is untouched. */
tr_status tr__atomic_open(tr__atomic_file *file, const char *path);
tr_status tr__atomic_write(tr__atomic_file *file, const void *data, size_t bytes);
tr_status tr__atomic_commit(tr__atomic_file *file);
/* Gives up: removes the temporary file. Does nothing on a file that is closed already. */
void tr__atomic_abandon(tr__atomic_file *file);

/* Makes what was created, renamed or removed in a folder durable. */
tr_status tr__folder_sync(int folder_fd, const char *path);

#endif
