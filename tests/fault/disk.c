#include "disk.h"

#include "fault.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, DESCRIPTORS = 1024, NAME = 256 };

int __real_mkdir(const char *path, mode_t mode);
int __real_closedir(DIR *d);

typedef struct node node;

typedef struct entry {
    char name[NAME];
    node *to; /* NULL: the name is removed */
} entry;

typedef struct entries {
    entry *list;
    int count;
} entries;

/* What one call does to a folder: a rename sets two names at once. */
typedef struct change {
    entry set[2];
    int count;
} change;

struct node {
    node *next; /* of all */
    bool folder;
    /* of a folder */
    entries live, durable;
    change *pending; /* what makes the one of the other */
    int pending_count;
    /* of a file: its bytes at the latest sync; `now`: at the crash */
    char *bytes, *now;
    size_t size, now_size;
    bool is_live;
};

static struct {
    char folder[PATH_MAX];
    node *root, *all;
    node *descriptors[DESCRIPTORS];
} disk;

/* ---- Nodes and entries ------------------------------------------------------------------------------------------- */

static void *checked(void *memory)
{
    if (!memory) abort();
    return memory;
}

static node *new_node(bool folder)
{
    node *n = checked(calloc(1, sizeof *n));
    n->folder = folder;
    n->next = disk.all;
    disk.all = n;
    return n;
}

static node *find(const entries *e, const char *name)
{
    for (int i = 0; i < e->count; i++)
        if (strcmp(e->list[i].name, name) == 0) return e->list[i].to;
    return NULL;
}

static void put(entries *e, const char *name, node *to)
{
    int i = 0;
    while (i < e->count && strcmp(e->list[i].name, name) != 0) i++;
    if (i == e->count) {
        if (!to) return;
        e->list = checked(reallocarray(e->list, (size_t)e->count + 1, sizeof *e->list));
        snprintf(e->list[e->count++].name, NAME, "%s", name);
    }
    e->list[i].to = to;
    if (!to) e->list[i] = e->list[--e->count];
}

static void copy_entries(entries *to, const entries *from)
{
    free(to->list);
    *to = (entries){checked(calloc((size_t)from->count + 1, sizeof *from->list)), from->count};
    for (int i = 0; i < from->count; i++) to->list[i] = from->list[i];
}

static void apply(entries *to, const change *c)
{
    for (int i = 0; i < c->count; i++) put(to, c->set[i].name, c->set[i].to);
}

static void make_change(node *folder, const change *c)
{
    apply(&folder->live, c);
    folder->pending = checked(reallocarray(folder->pending, (size_t)folder->pending_count + 1, sizeof *c));
    folder->pending[folder->pending_count++] = *c;
}

static void add_to(change *c, const char *name, node *to)
{
    c->set[c->count].to = to;
    snprintf(c->set[c->count++].name, NAME, "%s", name);
}

static void change_entry(node *folder, const char *name, node *to)
{
    change c = {0};
    add_to(&c, name, to);
    make_change(folder, &c);
}

/* ---- Paths ------------------------------------------------------------------------------------------------------- */

/* The folder that a path's last part is in, and that part; NULL: it is not below ours. */
static node *folder_of(int folder_fd, const char *path, const char **name)
{
    size_t length = strlen(disk.folder);
    node *at = NULL;
    if (path[0] != '/') {
        at = folder_fd >= 0 && folder_fd < DESCRIPTORS ? disk.descriptors[folder_fd] : NULL;
    } else if (strncmp(path, disk.folder, length) == 0 && (path[length] == '/' || !path[length])) {
        at = disk.root;
        path += length;
    }
    while (at) {
        while (*path == '/') path++;
        size_t part = strcspn(path, "/");
        *name = path;
        if (path[part + strspn(path + part, "/")] == 0) return at;
        char folder[NAME];
        snprintf(folder, sizeof folder, "%.*s", (int)part, path);
        at = find(&at->live, folder);
        path += part;
    }
    return NULL;
}

static node *node_of(int folder_fd, const char *path)
{
    const char *name;
    node *folder = folder_of(folder_fd, path, &name);
    if (!folder) return NULL;
    return *name && strcmp(name, ".") != 0 ? find(&folder->live, name) : folder;
}

/* ---- Files as they are ------------------------------------------------------------------------------------------- */

static char *read_bytes(const char *path, size_t *size)
{
    FILE *f = fopen(path, "re");
    struct stat s;
    *size = 0;
    if (!f || fstat(fileno(f), &s) != 0) abort();
    char *bytes = checked(malloc((size_t)s.st_size + 1));
    *size = fread(bytes, 1, (size_t)s.st_size, f);
    fclose(f);
    return bytes;
}

static node *scan(const char *path)
{
    node *n = new_node(true);
    DIR *d = checked(opendir(path));
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char inner[PATH_MAX];
        struct stat s;
        if (snprintf(inner, sizeof inner, "%s/%s", path, e->d_name) >= PATH_MAX || lstat(inner, &s) != 0) abort();
        node *child = S_ISDIR(s.st_mode) ? scan(inner) : new_node(false);
        if (!child->folder) child->bytes = read_bytes(inner, &child->size);
        put(&n->live, e->d_name, child);
    }
    __real_closedir(d);
    copy_entries(&n->durable, &n->live);
    return n;
}

/* Reads what the files contain now, and finds what the model does not know of. */
static bool take_in(node *n, const char *path, char *wrong, size_t bytes)
{
    int there = 0;
    DIR *d = opendir(path);
    while (d && readdir(d)) there++;
    if (d) __real_closedir(d);
    if (there != n->live.count + 2) {
        snprintf(wrong, bytes, "%s has %d entries, the model of the disk %d", path, there - 2, n->live.count);
        return false;
    }
    for (int i = 0; i < n->live.count; i++) {
        char inner[PATH_MAX];
        node *child = n->live.list[i].to;
        if (snprintf(inner, sizeof inner, "%s/%s", path, n->live.list[i].name) >= PATH_MAX) abort();
        if (access(inner, F_OK) != 0) {
            snprintf(wrong, bytes, "%s is in the model of the disk only", inner);
            return false;
        }
        child->is_live = true;
        if (child->folder && !take_in(child, inner, wrong, bytes)) return false;
        if (!child->folder) child->now = read_bytes(inner, &child->now_size);
    }
    return true;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

void disk_begin(const char *folder)
{
    snprintf(disk.folder, sizeof disk.folder, "%s", folder);
    disk.root = scan(folder);
}

bool disk_knows(int fd)
{
    return fd >= 0 && fd < DESCRIPTORS && disk.descriptors[fd];
}

bool disk_has_path(int folder_fd, const char *path)
{
    const char *name;
    return disk.root && folder_of(folder_fd, path, &name);
}

void disk_opened(int fd, int folder_fd, const char *path)
{
    const char *name;
    node *folder = folder_of(folder_fd, path, &name), *n = node_of(folder_fd, path);
    if (!folder || fd < 0 || fd >= DESCRIPTORS) return;
    if (!n) change_entry(folder, name, n = new_node(false));
    disk.descriptors[fd] = n;
}

void disk_closed(int fd)
{
    if (fd >= 0 && fd < DESCRIPTORS) disk.descriptors[fd] = NULL;
}

void disk_synced(int fd)
{
    node *n = disk.descriptors[fd];
    if (n->folder) {
        copy_entries(&n->durable, &n->live);
        n->pending_count = 0;
        return;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    free(n->bytes);
    n->bytes = read_bytes(link, &n->size);
}

void disk_made_folder(int folder_fd, const char *path)
{
    const char *name;
    node *folder = folder_of(folder_fd, path, &name);
    if (folder) change_entry(folder, name, new_node(true));
}

void disk_removed(int folder_fd, const char *path)
{
    const char *name;
    node *folder = folder_of(folder_fd, path, &name);
    if (folder) change_entry(folder, name, NULL);
}

void disk_renamed(int from_fd, const char *from, int to_fd, const char *to, bool exchange)
{
    const char *old_name, *new_name;
    node *old_folder = folder_of(from_fd, from, &old_name), *new_folder = folder_of(to_fd, to, &new_name);
    if (!old_folder || old_folder != new_folder) abort(); /* Trireme renames within a folder */
    change c = {0};
    add_to(&c, old_name, exchange ? find(&old_folder->live, new_name) : NULL);
    add_to(&c, new_name, find(&old_folder->live, old_name));
    make_change(old_folder, &c);
}

/* ---- A crash ----------------------------------------------------------------------------------------------------- */

/* How much of what was not synced is there all the same. */
typedef enum luck { NOTHING, SOMETHING, ALL } luck;

static int64_t part_of(luck l, int64_t count, uint64_t *draw)
{
    return l == NOTHING ? 0 : l == ALL ? count : draw_below(draw, count + 1);
}

/* A file's bytes: of each page those of the latest sync, or those of now. */
static void settle_file(node *n, luck l, uint64_t *draw)
{
    if (!n->is_live) return; /* what was written into it after the sync went with its name */
    size_t size = part_of(l, 1, draw) ? n->now_size : n->size;
    char *bytes = checked(calloc(size + 1, 1));
    for (size_t at = 0; at < size; at += PAGE) {
        bool now = part_of(l, 1, draw);
        const char *from = now ? n->now : n->bytes;
        size_t there = now ? n->now_size : n->size;
        if (at >= there) continue;
        size_t left = (there < size ? there : size) - at;
        memcpy(bytes + at, from + at, left < PAGE ? left : PAGE);
    }
    free(n->bytes);
    n->bytes = bytes;
    n->size = size;
}

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *ftw)
{
    (void)s, (void)flag;
    return ftw->level ? remove(path) : 0;
}

static void write_out(const node *folder, const char *path)
{
    for (int i = 0; i < folder->durable.count; i++) {
        char inner[PATH_MAX];
        const node *n = folder->durable.list[i].to;
        if (snprintf(inner, sizeof inner, "%s/%s", path, folder->durable.list[i].name) >= PATH_MAX) abort();
        if (n->folder) {
            if (__real_mkdir(inner, 0777) != 0) abort();
            write_out(n, inner);
            continue;
        }
        FILE *f = checked(fopen(inner, "we"));
        if (fwrite(n->bytes ? n->bytes : "", 1, n->size, f) != n->size) abort();
        fclose(f);
    }
}

bool disk_crash(uint64_t draw, char *wrong, size_t bytes)
{
    if (!take_in(disk.root, disk.folder, wrong, bytes)) return false;
    luck l = (luck)draw_below(&draw, 3);
    for (node *n = disk.all; n; n = n->next) {
        if (!n->folder) settle_file(n, l, &draw);
        int64_t done = part_of(l, n->pending_count, &draw);
        for (int64_t i = 0; i < done; i++) apply(&n->durable, &n->pending[i]);
    }
    nftw(disk.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    write_out(disk.root, disk.folder);
    return true;
}
