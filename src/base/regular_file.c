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
