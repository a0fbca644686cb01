#include "base/atomic_file.h"

#include "base/object.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ".model.safetensors.0123456789abcdef.tmp": enough of the name to know whose it is, within the 255 bytes of a name. */
#define PREFIX ".%.200s."
#define SUFFIX ".tmp"
enum { random_digits = 16 };

static void close_all(tr__atomic_file *f)
{
    if (f->fd >= 0) close(f->fd);
    if (f->folder_fd >= 0) close(f->folder_fd);
    f->fd = f->folder_fd = -1;
    free(f->path);
    free(f->folder);
    f->path = f->folder = NULL;
}

void tr__atomic_abandon(tr__atomic_file *f)
{
    if (f->fd >= 0) unlinkat(f->folder_fd, f->temporary, 0);
    close_all(f);
}

static tr_status give_up(tr__atomic_file *f, int error, const char *what)
{
    tr_status status = tr__fail_errno(TR_IO, error, "cannot %s %s", what, f->path);
    tr__atomic_abandon(f);
    return status;
}

static bool is_temporary_of(const char *entry, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(entry, prefix, length) == 0 && strlen(entry) == length + random_digits + strlen(SUFFIX) &&
           strspn(entry + length, "0123456789abcdef") == random_digits &&
           strcmp(entry + length + random_digits, SUFFIX) == 0;
}

/* Removes the temporary files of killed writers of the same file. */
static void sweep(const tr__atomic_file *f)
{
    char prefix[sizeof f->temporary];
    snprintf(prefix, sizeof prefix, PREFIX, f->name);
    DIR *folder = opendir(f->folder);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (!is_temporary_of(entry->d_name, prefix)) continue;
        int fd = openat(f->folder_fd, entry->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(f->folder_fd, entry->d_name, 0);
        close(fd);
    }
    if (folder) closedir(folder);
}

/* A sweep may remove the file before it is locked, or is about to when it holds the lock itself: then try another name. */
static int make_temporary(tr__atomic_file *f, mode_t mode)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t number;
        if (getrandom(&number, sizeof number, 0) != sizeof number) return errno;
        snprintf(f->temporary, sizeof f->temporary, PREFIX "%016" PRIx64 SUFFIX, f->name, number);
        f->fd = openat(f->folder_fd, f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (f->fd < 0 && errno == EEXIST) continue;
        if (f->fd < 0) return errno;
        struct stat s;
        /* Where there are no locks, leftovers are kept or taken by the next sweep. */
        bool contested = flock(f->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
        if (!contested && fstat(f->fd, &s) == 0 && s.st_nlink > 0) return 0;
        if (contested) unlinkat(f->folder_fd, f->temporary, 0);
        close(f->fd);
        f->fd = -1;
    }
    return EEXIST;
}

static tr_status split_path(tr__atomic_file *f, const char *path)
{
    *f = (tr__atomic_file){.fd = -1, .folder_fd = -1, .path = strdup(path), .folder = strdup(path)};
    const char *slash = strrchr(path, '/');
    f->name = slash ? slash + 1 : path;
    if (!f->path || !f->folder) {
        close_all(f);
        return tr__fail(TR_NO_MEMORY, "out of memory");
    }
    f->name = f->path + (f->name - path);
    if (!*f->name) {
        tr_status status = tr__fail(TR_INVALID, "\"%s\" is no file name", path);
        close_all(f);
        return status;
    }
    if (slash)
        f->folder[slash == path ? 1 : slash - path] = '\0';
    else
        strcpy(f->folder, "."); /* the name has at least one byte */
    return TR_OK;
}

tr_status tr__atomic_open(tr__atomic_file *f, const char *path)
{
    if (!path) return tr__fail(TR_INVALID, "the path of the file to write is NULL");
    TR__TRY(split_path(f, path));
    f->folder_fd = open(f->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->folder_fd < 0) return give_up(f, errno, "write");

    struct stat old;
    bool exists = fstatat(f->folder_fd, f->name, &old, 0) == 0;
    if (exists && !S_ISREG(old.st_mode)) {
        tr_status status = tr__fail(
            TR_INVALID, "cannot replace %s: it is %s", path, S_ISDIR(old.st_mode) ? "a folder" : "no plain file");
        close_all(f);
        return status;
    }
    sweep(f);
    int error = make_temporary(f, 0666);
    if (!error && exists && fchmod(f->fd, old.st_mode & 0777) < 0) error = errno;
    return error ? give_up(f, error, "write") : TR_OK;
}

tr_status tr__atomic_write(tr__atomic_file *f, const void *data, size_t bytes)
{
    /* The kernel begins to write each piece to the disk while the next one is copied into its cache. Left alone it would begin in
     * fsync(), after the last. A hint: what it cannot do now, fsync() does and reports. */
    enum { PIECE = 16 << 20 };
    for (const char *at = data; bytes;) {
        ssize_t put = write(f->fd, at, bytes < PIECE ? bytes : PIECE);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return give_up(f, put < 0 ? errno : EIO, "write");
        at += put;
        bytes -= (size_t)put;
        f->unsynced += put;
        if (f->unsynced < PIECE) continue;
        off_t end = lseek(f->fd, 0, SEEK_CUR);
        if (end >= f->unsynced) (void)sync_file_range(f->fd, end - f->unsynced, f->unsynced, SYNC_FILE_RANGE_WRITE);
        f->unsynced = 0;
    }
    return TR_OK;
}

tr_status tr__folder_sync(int folder_fd, const char *path)
{
    if (fsync(folder_fd) == 0 || errno == EINVAL) return TR_OK; /* EINVAL: this file system has no such thing */
    return tr__fail_errno(TR_IO, errno, "cannot sync %s", path);
}

tr_status tr__atomic_commit(tr__atomic_file *f)
{
    /* Only now is it known that there was room: file systems allocate late. */
    if (fsync(f->fd) < 0) return give_up(f, errno, "write");
    if (renameat(f->folder_fd, f->temporary, f->folder_fd, f->name) < 0) return give_up(f, errno, "replace");
    int closed = close(f->fd);
    f->fd = -1;
    tr_status status = tr__folder_sync(f->folder_fd, f->folder);
    if (status == TR_OK && closed < 0) status = tr__fail_errno(TR_IO, errno, "cannot write %s", f->path);
    close_all(f);
    return status;
}
