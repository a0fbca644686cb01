#include "train/plain_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

tr_status tr__plain_open(tr__plain_file *f, const char *path, const char *what)
{
    *f = (tr__plain_file){.path = path, .fd = -1};
    if (!path) return tr__fail(TR_INVALID, "no path of %s was given", what);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
    if (fd < 0) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "cannot open %s", path);
    struct stat s;
    tr_status status = TR_OK;
    if (fstat(fd, &s) < 0)
        status = tr__fail_errno(TR_IO, errno, "cannot read %s", path);
    else if (!S_ISREG(s.st_mode))
        status = tr__fail(TR_FORMAT, "%s: is %s, not %s", path, S_ISDIR(s.st_mode) ? "a folder" : "no plain file", what);
    if (status != TR_OK) {
        close(fd);
        return status;
    }
    f->fd = fd;
    f->bytes = (uint64_t)s.st_size;
    return TR_OK;
}

tr_status tr__plain_read(const tr__plain_file *f, uint64_t offset, void *to, uint64_t bytes)
{
    enum { most = 1 << 30 }; /* a single read stops short of 2 GiB anyway */
    for (char *at = to; bytes;) {
        ssize_t got = pread(f->fd, at, bytes < most ? bytes : most, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return tr__fail_errno(TR_IO, errno, "cannot read %s", f->path);
        if (got == 0) return tr__fail(TR_FORMAT, "%s: became shorter while it was read", f->path);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return TR_OK;
}

void tr__plain_close(tr__plain_file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}
