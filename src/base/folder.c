#include "base/folder.h"

#include "base/atomic_file.h"
#include "base/object.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The name of a new folder is on the disk when the folder around it is: else a power cut takes it away with all that is in
 * it, however well that was synced. Where the folder around it may not be read, nothing can be done. */
static tr_status sync_parent(const char *path)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int fd = open(*parent ? parent : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return TR_OK;
    tr_status status = tr__folder_sync(fd, *parent ? parent : "/");
    close(fd);
    return status;
}

tr_status tr__folder_make(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof part) return tr__fail(TR_INVALID, "the path %.60s… is too long", path);
    while (length > 1 && path[length - 1] == '/') length--;
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) == 0)
            TR__TRY(sync_parent(part));
        else if (errno != EEXIST)
            return tr__fail_errno(TR_IO, errno, "cannot make the folder %s", part);
    }
    return TR_OK;
}

tr_status tr__path_join(char path[PATH_MAX], const char *folder, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return TR_OK;
    return tr__fail(TR_INVALID, "the path %.60s…/%s is too long", folder, name);
}
