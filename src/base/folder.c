#include "base/folder.h"

#include "base/object.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

tr_status tr__folder_make(const char *path, mode_t mode)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof part) return tr__fail(TR_INVALID, "the path %.60s… is too long", path);
    while (length > 1 && path[length - 1] == '/') length--;
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, i < length ? 0777 : mode) < 0 && errno != EEXIST)
            return tr__fail_errno(TR_IO, errno, "cannot make the folder %s", part);
    }
    return TR_OK;
}
