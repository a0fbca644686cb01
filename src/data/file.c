#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static tr_status read_open(int fd, unsigned char **bytes, size_t *count)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return tr__fail(TR_INVALID, "it is no file");
    size_t size = (size_t)info.st_size;
    unsigned char *to = malloc(size ? size : 1);
    if (!to) return tr__fail(TR_NO_MEMORY, "no memory for its %zu bytes", size);
    for (*count = 0; *count < size;) {
        ssize_t n = read(fd, to + *count, size - *count);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            free(to);
            return tr__fail_errno(TR_IO, errno, "it cannot be read");
        }
        if (n == 0) break; /* it became shorter */
        *count += (size_t)n;
    }
    *bytes = to;
    return TR_OK;
}

tr_status tr__file_read(const char *path, unsigned char **bytes, size_t *count)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "it cannot be opened");
    tr_status status = read_open(fd, bytes, count);
    close(fd);
    return status;
}
