#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

static char root[] = "/tmp/trireme-files-XXXXXX";

int files_begin(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *where)
{
    (void)info, (void)flag, (void)where;
    return remove(path);
}

int files_end(void **state)
{
    (void)state;
    return nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

const char *files_path(const char *name)
{
    static char path[8][512];
    static int next;
    char *to = path[next++ % 8];
    snprintf(to, sizeof path[0], "%s/%s", root, name);
    return to;
}

static const char *place(const char *name)
{
    const char *path = files_path(name);
    char folder[512];
    for (const char *slash = strchr(path + sizeof root, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        mkdir(folder, 0777);
    }
    return path;
}

const char *files_write(const char *name, const void *bytes, size_t n)
{
    const char *path = place(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    return path;
}

const char *files_write_gz(const char *name, const void *bytes, size_t n)
{
    const char *path = place(name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)n), n);
    assert_int_equal(gzclose(file), Z_OK);
    return path;
}
