#include "train/plain_file.h"

#include "base/regular_file.h"

#include <errno.h>
#include <unistd.h>

tr_status tr__plain_open(tr__plain_file *f, const char *path, const char *what)
{
    *f = (tr__plain_file){.path = path, .fd = -1};
    if (!path) return tr__fail(TR_INVALID, "no path of %s was given", what);
    int64_t bytes;
    int fd = tr__regular_open(path, &bytes);
    if (fd < 0 && (errno == EISDIR || errno == ENODEV))
        return tr__fail(TR_FORMAT, "%s: is %s, not %s", path, errno == EISDIR ? "a folder" : "no plain file", what);
    if (fd < 0) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "cannot open %s", path);
    f->fd = fd;
    f->bytes = (uint64_t)bytes;
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
