#include "data/file.h"

#include "base/regular_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tr_status read_open(int fd, size_t size, unsigned char **bytes, size_t *count)
{
    unsigned char *to = malloc(size + 1);
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
    to[*count] = '\0';
    *bytes = to;
    return TR_OK;
}

tr_status tr__file_read(const char *path, unsigned char **bytes, size_t *count)
{
    int64_t size;
    int fd = tr__regular_open(path, &size);
    if (fd < 0 && (errno == EISDIR || errno == ENODEV)) return tr__fail(TR_INVALID, "it is no file");
    if (fd < 0) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "it cannot be opened");
    tr_status status = read_open(fd, (size_t)size, bytes, count);
    close(fd);
    return status;
}

static int without_dot(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* By bytes: alphasort() would follow the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int tr__folder_scan(const char *path, struct dirent ***entries)
{
    return scandir(path, entries, without_dot, by_name);
}
