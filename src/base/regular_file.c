#include "base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int tr__regular_open(const char *path, int64_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    struct stat s;
    int error = 0;
    if (fstat(fd, &s) < 0)
        error = errno;
    else if (!S_ISREG(s.st_mode))
        error = S_ISDIR(s.st_mode) ? EISDIR : ENODEV;
    if (error) {
        close(fd);
        errno = error;
        return -1;
    }
    *bytes = s.st_size;
    return fd;
}

int64_t tr__unpacked_most(int64_t file_bytes, int64_t allowed)
{
    const int64_t least = 64 << 20, times = 32;
    if (allowed) return allowed;
    if (file_bytes > INT64_MAX / times) return INT64_MAX;
    return file_bytes * times > least ? file_bytes * times : least;
}
