/* Reading a text: a file, or the files of a folder in an order that every machine agrees on. */
#include "data/file.h"
#include "data/text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tr_status reserve(tr_text *text, int64_t more, const char *path)
{
    if (text->capacity - text->count >= more) return TR_OK;
    int64_t capacity = 2 * text->capacity > text->count + more ? 2 * text->capacity : text->count + more;
    unsigned char *bytes = realloc(text->bytes, (size_t)capacity);
    if (!bytes)
        return tr__fail(TR_NO_MEMORY, "text: no memory for %" PRId64 " bytes, at %s", text->count + more, path);
    text->bytes = bytes;
    text->capacity = capacity;
    return TR_OK;
}

/* Appends to the end of the file, whatever its size is said to be. */
static tr_status read_all(tr_text *text, int fd, int64_t size, const char *path)
{
    /* A byte more than the size, so that the end is seen without growing. */
    TR__TRY(reserve(text, size + 1, path));
    for (;;) {
        TR__TRY(reserve(text, 1, path));
        ssize_t n = read(fd, text->bytes + text->count, (size_t)(text->capacity - text->count));
        if (n > 0)
            text->count += n;
        else if (n == 0)
            return TR_OK;
        else if (errno != EINTR)
            return tr__fail_errno(TR_IO, errno, "text: cannot read %s", path);
    }
}

static tr_status read_file(tr_text *text, const char *path, int64_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "text: cannot open %s", path);
    tr_status status = read_all(text, fd, size, path);
    close(fd);
    return status;
}

/* ---- Folders ---------------------------------------------------------------------------------------------------- */

/* Is one of the words of suffixes the end of name? NULL: any name will do. */
static bool has_suffix(const char *name, const char *suffixes)
{
    if (!suffixes) return true;
    size_t length = strlen(name);
    for (const char *word = suffixes + strspn(suffixes, " "); *word; word += strspn(word, " ")) {
        size_t n = strcspn(word, " ");
        if (n <= length && strncmp(name + length - n, word, n) == 0) return true;
        word += n;
    }
    return false;
}

static tr_status read_from_folder(tr_text *text, const char *path, const char *suffixes, int64_t size)
{
    if (!has_suffix(path, suffixes)) {
        text->with_other_suffix++;
        return TR_OK;
    }
    int64_t before = text->count;
    TR__TRY(read_file(text, path, size));
    if (text->count > before && memchr(text->bytes + before, 0, (size_t)(text->count - before))) {
        text->count = before;
        text->with_nul++;
        return TR_OK;
    }
    text->files += text->count > before;
    return TR_OK;
}

static tr_status read_folder(tr_text *text, const char *path, const char *suffixes);

/* Links to files are followed, links to folders are not: they may lead back up. */
static tr_status read_entry(tr_text *text, const char *path, const char *suffixes)
{
    struct stat info, target;
    if (lstat(path, &info) != 0) return tr__fail_errno(TR_IO, errno, "text: cannot look at %s", path);
    if (S_ISDIR(info.st_mode)) return read_folder(text, path, suffixes);
    bool is_file = S_ISREG(info.st_mode);
    if (S_ISLNK(info.st_mode)) {
        is_file = stat(path, &target) == 0 && S_ISREG(target.st_mode);
        info = is_file ? target : info;
    }
    return is_file ? read_from_folder(text, path, suffixes, info.st_size) : TR_OK;
}

static tr_status read_folder(tr_text *text, const char *path, const char *suffixes)
{
    struct dirent **entries;
    int n = tr__folder_scan(path, &entries);
    if (n < 0) return tr__fail_errno(TR_IO, errno, "text: cannot read the folder %s", path);
    tr_status status = TR_OK;
    for (int i = 0; i < n; i++) {
        char *full = NULL;
        if (status == TR_OK && asprintf(&full, "%s/%s", path, entries[i]->d_name) < 0) {
            full = NULL;
            status = tr__fail(TR_NO_MEMORY, "text: out of memory at %s", path);
        }
        if (status == TR_OK) status = read_entry(text, full, suffixes);
        free(full);
        free(entries[i]);
    }
    free(entries);
    return status;
}

tr_status tr__text_read(tr_text *text, const char *suffixes)
{
    struct stat info;
    if (stat(text->path, &info) != 0)
        return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "text: cannot open %s", text->path);
    if (S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode)) {
        text->files = 1;
        TR__TRY(read_file(text, text->path, info.st_size));
        if (text->count == 0) return tr__fail(TR_INVALID, "text: %s is empty", text->path);
        return TR_OK;
    }
    if (!S_ISDIR(info.st_mode)) return tr__fail(TR_INVALID, "text: %s is neither a file nor a folder", text->path);
    TR__TRY(read_folder(text, text->path, suffixes));
    if (text->count) return TR_OK;
    return tr__fail(TR_INVALID, "text: there is no text in the folder %s (left out: %d files whose names do not end in "
        "\"%s\", %d with NUL bytes, and empty ones)", text->path, text->with_other_suffix, suffixes ? suffixes : "",
        text->with_nul);
}
