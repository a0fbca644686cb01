/*
 * System calls on the files of the training, in rank 0, which is the only one to use any. Every call below the folder
 * is counted, so that a fault finds the same one in every run, and is told to the model of the disk.
 */
#include "disk.h"
#include "inject.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

int __real_open(const char *path, int flags, ...);
int __real_openat(int folder, const char *path, int flags, ...);
int __real_close(int fd);
int __real_closedir(DIR *d);
ssize_t __real_read(int fd, void *to, size_t bytes);
ssize_t __real_pread(int fd, void *to, size_t bytes, off_t offset);
ssize_t __real_write(int fd, const void *from, size_t bytes);
ssize_t __real_pwrite(int fd, const void *from, size_t bytes, off_t offset);
int __real_fsync(int fd);
int __real_mkdir(const char *path, mode_t mode);
int __real_mkdirat(int folder, const char *path, mode_t mode);
int __real_unlinkat(int folder, const char *path, int flags);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __real_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the model; held for the whole of a call */

static void begin(void)
{
    if (injected() && injected_rank() == 0) disk_begin(injected()->folder);
}

/* Is the call one to be watched? Then the lock is held. */
static bool watch(int fd, const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!injected() || injected_rank() != 0) return false;
    pthread_once(&once, begin);
    pthread_mutex_lock(&lock);
    if (path ? disk_has_path(fd, path) : disk_knows(fd)) return true;
    pthread_mutex_unlock(&lock);
    return false;
}

/* Unlocks, and keeps errno. */
static ssize_t done(ssize_t result)
{
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

/* ---- What may happen in any call --------------------------------------------------------------------------------- */

/* The whole machine stops: nothing runs on, and its disk keeps what it has. */
static void crash(void)
{
    fault_page *p = injected();
    if (!disk_crash(p->fault.draw, p->wrong, sizeof p->wrong)) atomic_store(&p->fired, true);
    kill(p->launcher, SIGKILL);
    raise(SIGKILL);
}

/* Is the n-th call the one in which all ends? */
static bool ends_in(int64_t n)
{
    if (!injected()) return false;
    const fault *f = &injected()->fault;
    return injects(FAULT_LOST_SYNC) ? n == f->until
                                    : (injects(FAULT_CRASH) || injects(FAULT_KILL_IN_CALL)) && n == f->at;
}

/* Counts a call, which may be the one. False, and errno, when it is to fail. */
static bool enter(const char *call, const char *path, bool takes_room)
{
    const fault *f = &injected()->fault;
    int64_t n = atomic_fetch_add(&injected()->counts[0].files, 1);
    if (ends_in(n)) {
        injected_now("all ends in call %lld on files, %s of %s", (long long)n, call, path);
        if (f->kind != FAULT_KILL_IN_CALL) crash();
        raise(SIGKILL);
    }
    bool full = injects(FAULT_NO_SPACE) && n >= f->at && takes_room, broken = injects(FAULT_FILE_ERROR) && n == f->at;
    if (!full && !broken) return true;
    errno = full ? ENOSPC : EIO;
    injected_now("call %lld on files, %s of %s, fails: %s", (long long)n, call, path, full ? "ENOSPC" : "EIO");
    return false;
}

static bool next_is_end(void)
{
    return ends_in(atomic_load(&injected()->counts[0].files));
}

static const char *name_of(int fd)
{
    static char path[PATH_MAX];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static int open_at(int folder, const char *path, int flags, mode_t mode)
{
    if (!watch(folder, path)) return __real_openat(folder, path, flags, mode);
    int fd = enter("open", path, flags & O_CREAT) ? __real_openat(folder, path, flags, mode) : -1;
    if (fd >= 0) disk_opened(fd, folder, path);
    return (int)done(fd);
}

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & O_CREAT ? (mode_t)va_arg(arguments, int) : 0;
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_at(AT_FDCWD, path, flags, mode);
}

int __wrap_openat(int folder, const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_at(folder, path, flags, mode);
}

int __wrap_close(int fd)
{
    if (!watch(fd, NULL)) return __real_close(fd);
    disk_closed(fd);
    return (int)done(__real_close(fd));
}

/* Not by close(), in the C library. */
int __wrap_closedir(DIR *d)
{
    if (!watch(dirfd(d), NULL)) return __real_closedir(d);
    disk_closed(dirfd(d));
    return (int)done(__real_closedir(d));
}

int __wrap_mkdirat(int folder, const char *path, mode_t mode)
{
    if (!watch(folder, path)) return __real_mkdirat(folder, path, mode);
    bool exists = faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0; /* then that is what it says, full or not */
    int result = exists || enter("mkdir", path, true) ? __real_mkdirat(folder, path, mode) : -1;
    if (result == 0) disk_made_folder(folder, path);
    return (int)done(result);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return __wrap_mkdirat(AT_FDCWD, path, mode);
}

int __wrap_unlinkat(int folder, const char *path, int flags)
{
    if (!watch(folder, path)) return __real_unlinkat(folder, path, flags);
    int result = enter("unlink", path, false) ? __real_unlinkat(folder, path, flags) : -1;
    if (result == 0) disk_removed(folder, path);
    return (int)done(result);
}

int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (!watch(from_folder, from)) return __real_renameat2(from_folder, from, to_folder, to, flags);
    int result = enter("rename", from, true) ? __real_renameat2(from_folder, from, to_folder, to, flags) : -1;
    if (result == 0) disk_renamed(from_folder, from, to_folder, to, flags == RENAME_EXCHANGE);
    return (int)done(result);
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return __wrap_renameat2(from_folder, from, to_folder, to, 0);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

int __wrap_fsync(int fd)
{
    if (!watch(fd, NULL)) return __real_fsync(fd);
    const fault_page *p = injected();
    struct stat s = {0};
    fstat(fd, &s);
    int64_t n = atomic_load(&p->counts[0].files);
    if (!enter("fsync", name_of(fd), true)) return (int)done(-1);
    bool lost = injects(FAULT_LOST_SYNC) && n >= p->fault.at;
    bool planted = p->defect == (S_ISDIR(s.st_mode) ? DEFECT_FOLDER_SYNC : DEFECT_SYNC);
    /* The model alone decides what a crash leaves, so the disk itself need not be waited for. */
    if (!lost && !planted) disk_synced(fd);
    return (int)done(0);
}

/* Of a call that may do less than it was asked for: how much it does now; -1: it is interrupted. */
static ssize_t part_of(size_t bytes)
{
    if (!injects(FAULT_FILE_PARTS) || bytes < 2) return (ssize_t)bytes;
    injected_now("reads and writes end early");
    return injected_below(4) ? 1 + injected_below((int64_t)bytes) : -1;
}

static ssize_t interrupted(void)
{
    errno = EINTR;
    return -1;
}

/* The n-th write as it is damaged on its way, to be freed; NULL: as it is. */
static char *damaged(int fd, const char *from, size_t bytes, off_t offset)
{
    const fault *f = &injected()->fault;
    int64_t n = atomic_fetch_add(&injected()->counts[0].writes, 1);
    bool flip = injects(FAULT_FLIP_WRITE), torn = injects(FAULT_TORN_WRITE);
    if ((!flip && !torn) || n != f->at || !bytes) return NULL;
    char *copy = malloc(bytes);
    if (!copy) abort();
    memcpy(copy, from, bytes);
    if (flip) {
        int64_t bit = injected_below(8 * (int64_t)bytes);
        copy[bit / 8] ^= (char)(1 << bit % 8);
        injected_now("write %lld, %zu bytes of %s at %lld: bit %lld differs", (long long)n, bytes, name_of(fd),
                     (long long)offset, (long long)bit);
        return copy;
    }
    /* Pages of the file, not of the write. */
    off_t first = offset / PAGE, page = first + injected_below((offset + (off_t)bytes - 1) / PAGE - first + 1);
    off_t begin_at = page * PAGE < offset ? offset : page * PAGE, end = (page + 1) * PAGE;
    if (end > offset + (off_t)bytes) end = offset + (off_t)bytes;
    memset(copy + (begin_at - offset), 0, (size_t)(end - begin_at));
    (void)!__real_pread(fd, copy + (begin_at - offset), (size_t)(end - begin_at), begin_at);
    injected_now("write %lld, %zu bytes of %s at %lld: bytes %lld to %lld are not written", (long long)n, bytes,
                 name_of(fd), (long long)offset, (long long)begin_at, (long long)end);
    return copy;
}

static ssize_t write_at(int fd, const void *from, size_t bytes, off_t offset, bool here)
{
    if (next_is_end() && injected_below(2)) bytes = (size_t)injected_below((int64_t)bytes + 1);
    if (next_is_end()) /* half of it is done then */
        (void)!(here ? __real_write(fd, from, bytes) : __real_pwrite(fd, from, bytes, offset));
    if (!enter("write", name_of(fd), true)) return -1;
    ssize_t part = part_of(bytes);
    if (part < 0) return interrupted();
    char *copy = damaged(fd, from, (size_t)part, offset);
    const void *what = copy ? copy : from;
    ssize_t put = here ? __real_write(fd, what, (size_t)part) : __real_pwrite(fd, what, (size_t)part, offset);
    free(copy);
    return put;
}

ssize_t __wrap_write(int fd, const void *from, size_t bytes)
{
    if (!watch(fd, NULL)) return __real_write(fd, from, bytes);
    struct stat s = {0};
    bool appends = fcntl(fd, F_GETFL) & O_APPEND;
    off_t offset = appends && fstat(fd, &s) == 0 ? s.st_size : lseek(fd, 0, SEEK_CUR);
    return done(write_at(fd, from, bytes, offset, true));
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t offset)
{
    if (!watch(fd, NULL)) return __real_pwrite(fd, from, bytes, offset);
    return done(write_at(fd, from, bytes, offset, false));
}

static ssize_t read_at(int fd, char *to, size_t bytes, off_t offset, bool here)
{
    if (!enter("read", name_of(fd), false)) return -1;
    ssize_t part = part_of(bytes);
    if (part < 0) return interrupted();
    ssize_t got = here ? __real_read(fd, to, (size_t)part) : __real_pread(fd, to, (size_t)part, offset);
    int64_t n = atomic_fetch_add(&injected()->counts[0].reads, 1);
    if (got <= 0 || !injects(FAULT_FLIP_READ) || n != injected()->fault.at) return got;
    int64_t bit = injected_below(8 * (int64_t)got);
    to[bit / 8] ^= (char)(1 << bit % 8);
    injected_now("read %lld, %zd bytes of %s: bit %lld differs", (long long)n, got, name_of(fd), (long long)bit);
    return got;
}

ssize_t __wrap_read(int fd, void *to, size_t bytes)
{
    if (!watch(fd, NULL)) return __real_read(fd, to, bytes);
    return done(read_at(fd, to, bytes, 0, true));
}

ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t offset)
{
    if (!watch(fd, NULL)) return __real_pread(fd, to, bytes, offset);
    return done(read_at(fd, to, bytes, offset, false));
}
