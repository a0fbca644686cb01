/*
 * Finding and reading flight records. The processes may be stopped or hang, so nothing is asked of them: their memfds are
 * opened through /proc. What is read there was written by another process, and maybe half written, so all is checked.
 */
#define _GNU_SOURCE
#include "base/memory.h"
#include "base/object.h"
#include "comm/record/record.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GET(field) atomic_load_explicit(&(field), memory_order_acquire)

enum { TRIES = 8, WORLD_MOST = 1 << 20 };

/* ---- Processes --------------------------------------------------------------------------------------------------- */

/* The kernel shows a process's exit code to those that may look into it, and 0 to others. A process that is exiting has
 * no memory any more, and so no program. */
static bool may_look_into(long pid)
{
    char path[40], program[8];
    snprintf(path, sizeof path, "/proc/%ld/exe", pid);
    return readlink(path, program, sizeof program) >= 0 || errno == ENOENT;
}

tr__process tr__process_of(long pid)
{
    enum { FLAGS = 9, START = 22, EXIT_CODE = 52, PF_EXITING = 4 }; /* proc(5); linux/sched.h */
    char path[40], stat[1024];
    tr__process process = {.state = 'X'};
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return process;
    ssize_t got = read(fd, stat, sizeof stat - 1);
    close(fd);
    stat[got > 0 ? got : 0] = 0;
    const char *at = strrchr(stat, ')'); /* the name before it may hold anything */
    if (!at || !at[1] || !at[2]) return process;
    if (!strchr("ZXx", at[2])) process.state = at[2];
    process.parent = strtol(at + 3, NULL, 10);
    for (int field = 3; (at = strchr(at + 1, ' ')); field++) { /* the state is field 3 */
        if (field == FLAGS) process.exiting = strtoul(at, NULL, 10) & PF_EXITING;
        if (field == START) process.start = strtoull(at, NULL, 10);
        if (field == EXIT_CODE) process.status = (int)strtol(at, NULL, 10);
    }
    process.exiting = process.exiting && may_look_into(pid);
    return process;
}

/* ---- One record -------------------------------------------------------------------------------------------------- */

typedef struct mapping {
    const tr__record_header *header; /* its owner writes it all the time: what was checked is not read again */
    int rank, world_size;
    const tr__record_entry *entries;
    const tr__record_peer *peers;
    size_t bytes;
} mapping;

static bool is_sound(mapping *m)
{
    const tr__record_header *h = m->header;
    if (m->bytes < sizeof *h + TR__RECORD_ENTRIES * sizeof *m->entries) return false;
    if (memcmp(h->magic, TR__RECORD_MAGIC, sizeof h->magic) != 0 || h->version != TR__RECORD_VERSION) return false;
    if (h->header_bytes != sizeof *h || h->entry_bytes != sizeof *m->entries || h->peer_bytes != sizeof *m->peers ||
        h->entry_count != TR__RECORD_ENTRIES)
        return false;
    m->world_size = h->world_size;
    m->rank = h->rank;
    if (m->world_size < 1 || m->world_size > WORLD_MOST || m->rank < 0 || m->rank >= m->world_size) return false;
    return m->bytes >= sizeof *h + TR__RECORD_ENTRIES * sizeof *m->entries + (size_t)m->world_size * sizeof *m->peers;
}

static bool look_at(const void *memory, size_t bytes, mapping *m)
{
    m->bytes = bytes;
    m->header = memory;
    m->entries = (const tr__record_entry *)(m->header + 1);
    m->peers = (const tr__record_peer *)(m->entries + TR__RECORD_ENTRIES);
    return is_sound(m);
}

/* Printable, and with an end. */
static void copy_text(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    to[bytes - 1] = 0;
    tr_printable(to);
}

/* A time that can be reckoned with; 0, "not yet", for any other. */
static int64_t moment(int64_t ns)
{
    return ns > 0 && ns < INT64_MAX / 4 ? ns : 0;
}

/* False when the entry is empty, or was being written. */
static bool read_call(const tr__record_entry *e, tr__record_call *call)
{
    uint64_t mark = GET(e->mark);
    if (mark == 0 || mark % 2) return false;
    tr__signature *s = &call->signature;
    *s = tr__call_read(&e->call, e->file, sizeof e->file);
    tr_printable(s->file);
    if ((unsigned)s->kind >= TR__KINDS || (unsigned)s->dtype >= TR_DTYPE_COUNT ||
        (unsigned)s->op >= TR_REDUCE_OP_COUNT)
        return false;
    s->sequence = tr__kind_of(s->kind)->point_to_point ? 0 : GET(e->sequence);
    call->id = mark / 2 - 1;
    call->ended = moment(GET(e->ended));
    call->status = GET(e->status);
    call->posted = moment(GET(e->posted));
    call->started = moment(GET(e->started));
    return GET(e->mark) == mark;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const tr__record_call *)a)->id, y = ((const tr__record_call *)b)->id;
    return (x > y) - (x < y);
}

static void read_waits(const tr__record_header *h, tr__record *r)
{
    for (int i = 0; i < TRIES; i++) {
        uint32_t mark = GET(h->waits_mark);
        int total = GET(h->waits_total), count = total < TR__RECORD_WAITS ? total : TR__RECORD_WAITS;
        r->waits_since = moment(GET(h->waits_since));
        r->waits_total = total;
        r->waits_count = 0;
        for (int k = 0; k < count; k++) {
            int rank = GET(h->waits[k]);
            if (rank >= 0 && rank < r->world_size) r->waits[r->waits_count++] = rank;
        }
        if (mark % 2 == 0 && GET(h->waits_mark) == mark) return;
    }
    r->waits_count = r->waits_total = 0; /* it changes all the time: nothing to wait for */
}

static void read_header(const mapping *m, tr__record *r)
{
    const tr__record_header *h = m->header;
    copy_text(r->job, h->job, sizeof r->job);
    copy_text(r->host, h->host, sizeof r->host);
    copy_text(r->group, h->group, sizeof r->group);
    copy_text(r->backend, h->backend, sizeof r->backend);
    r->pid = h->pid;
    r->parent = h->parent;
    r->rank = m->rank;
    r->world_size = m->world_size;
    r->monotonic = moment(h->monotonic);
    r->realtime = moment(h->realtime);
    r->rpc = GET(h->rpc) != 0;
    uint32_t state = GET(h->state);
    r->state = state <= TR__RECORD_FAILED ? (tr__record_state)state : TR__RECORD_JOINED;
    r->failed = moment(GET(h->failed));
    uint64_t words[TR__RECORD_FAILURE / 8];
    for (size_t i = 0; i < TR__RECORD_FAILURE / 8; i++) words[i] = GET(h->failure[i]);
    if (r->failed) copy_text(r->failure, (char *)words, sizeof r->failure);
    r->held = (tr__held){GET(h->held_rank), GET(h->held_tag), GET(h->held_bytes)};
    if (r->held.rank < 0 || r->held.rank >= r->world_size) r->held = (tr__held){0};
}

static tr_status read_record(const mapping *m, tr__record *r)
{
    *r = (tr__record){0};
    read_header(m, r);
    r->calls = calloc(TR__RECORD_ENTRIES, sizeof *r->calls);
    r->peers = calloc((size_t)r->world_size, sizeof *r->peers);
    if (!r->calls || !r->peers) {
        free(r->calls);
        free(r->peers);
        return tr__fail(TR_NO_MEMORY, "no memory for the flight record of rank %d", r->rank);
    }
    for (int i = 0; i < TR__RECORD_ENTRIES; i++) r->call_count += read_call(&m->entries[i], &r->calls[r->call_count]);
    qsort(r->calls, (size_t)r->call_count, sizeof *r->calls, by_id);
    read_waits(m->header, r);
    for (int i = 0; i < r->world_size; i++) {
        r->peers[i].pid = GET(m->peers[i].pid);
        if (r->peers[i].pid) copy_text(r->peers[i].host, m->peers[i].host, sizeof r->peers[i].host);
    }
    return TR_OK;
}

tr_status tr__record_of(const void *memory, size_t bytes, tr__record *record)
{
    mapping m;
    if (!look_at(memory, bytes, &m)) return tr__fail(TR_FORMAT, "%zu bytes that are no flight record", bytes);
    return read_record(&m, record);
}

/* ---- All records ------------------------------------------------------------------------------------------------- */

/* A child that was forked holds its parent's record, too; in a process namespace of its own the writer knows itself by
 * another number. So the writer is who began when the record says. */
static void own(tr__record *r, pid_t pid, const tr__record_header *h)
{
    tr__process process = tr__process_of(pid);
    if (process.start == h->pid_start && (pid == h->pid || !r->owned)) {
        r->pid = pid;
        r->process = process;
        r->owned = true;
    } else if (!r->owned) {
        r->process = (tr__process){.state = 'X'};
    }
}

static void free_record(tr__record *r)
{
    free(r->calls);
    free(r->peers);
}

static tr_status take_mapped(tr__records *all, pid_t pid, ino_t inode, size_t offset, const mapping *m)
{
    int index = 0;
    while (index < all->count && (all->list[index].inode != inode || all->list[index].offset != offset)) index++;
    if (index == all->count) {
        int64_t made = m->header->monotonic;
        if (!tr__grow(&all->list, (size_t)all->count, &all->room, sizeof *all->list))
            return tr__fail(TR_NO_MEMORY, "no memory for more than %d flight records", all->count);
        TR__TRY(read_record(m, &all->list[index]));
        all->list[index].inode = inode;
        all->list[index].offset = offset;
        all->count++;
        bool same = memcmp(m->header->magic, TR__RECORD_MAGIC, sizeof m->header->magic) == 0 && m->header->monotonic == made;
        if (!same) { /* it was closed meanwhile, and its memory may be that of another by now */
            free_record(&all->list[--all->count]);
            return TR_OK;
        }
    }
    own(&all->list[index], pid, m->header);
    return TR_OK;
}

/* A file that could shrink under us is left alone. */
static tr_status take(tr__records *all, pid_t pid, int fd)
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) != 0 || file.st_size == 0) return TR_OK;
    size_t bytes = (size_t)file.st_size;
    const char *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return TR_OK;
    tr_status status = TR_OK;
    mapping m;
    for (size_t at = 0, next; at < bytes && status == TR_OK; at = next) {
        next = at + TR__PAGE;
        if (!look_at(memory + at, bytes - at, &m)) continue;
        next = at + tr__round_up((size_t)((const char *)(m.peers + m.world_size) - (memory + at)), TR__PAGE);
        status = take_mapped(all, pid, file.st_ino, at, &m);
    }
    munmap((void *)memory, bytes);
    return status;
}

/* Not opendir(): ThreadSanitizer does not see it, and takes the descriptor for the one that had its number before. */
static DIR *open_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !folder) close(fd);
    return folder;
}

/* The descriptors of one process; it may end meanwhile, and not every process of ours lets us look. */
static tr_status search_process(tr__records *all, pid_t pid)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = open_folder(path);
    tr_status status = TR_OK;
    struct dirent *entry;
    while (folder && status == TR_OK && (entry = readdir(folder))) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%d/fd/%.12s", (int)pid, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (strncmp(target, "/memfd:" TR__RECORD_MEMFD " ", strlen("/memfd:" TR__RECORD_MEMFD " ")) != 0) continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        status = take(all, pid, fd);
        close(fd);
    }
    if (folder) closedir(folder);
    return status;
}

static tr_status search_all(tr__records *all)
{
    DIR *folder = open_folder("/proc");
    if (!folder) return tr__fail_errno(TR_IO, errno, "cannot read /proc");
    tr_status status = TR_OK;
    struct dirent *entry;
    while (status == TR_OK && (entry = readdir(folder))) {
        struct stat file;
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        if (fstatat(dirfd(folder), entry->d_name, &file, 0) != 0 || file.st_uid != geteuid()) continue;
        status = search_process(all, atoi(entry->d_name));
    }
    closedir(folder);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const tr__record *x = a, *y = b;
    int order = strcmp(x->job, y->job);
    if (!order && !x->job[0]) order = (x->parent > y->parent) - (x->parent < y->parent);
    if (!order) order = strcmp(x->group, y->group);
    if (!order) order = x->world_size - y->world_size;
    return order ? order : x->rank - y->rank;
}

tr_status tr__records_read(pid_t pid, tr__records *records)
{
    *records = (tr__records){0};
    tr_status status = pid ? search_process(records, pid) : search_all(records);
    if (status != TR_OK)
        tr__records_free(records);
    else if (records->count > 1)
        qsort(records->list, (size_t)records->count, sizeof *records->list, by_place);
    return status;
}

void tr__records_free(tr__records *records)
{
    for (int i = 0; i < records->count; i++) free_record(&records->list[i]);
    free(records->list);
    *records = (tr__records){0};
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

static int importance(const tr__record_call *c)
{
    if (c->signature.sequence) return 2;
    return (int)c->signature.kind != TR__REMOTE_WAIT || c->signature.peer >= 0;
}

const tr__record_call *tr__record_running(const tr__record *r)
{
    const tr__record_call *found = NULL;
    for (int i = 0; i < r->call_count; i++) {
        const tr__record_call *c = &r->calls[i];
        if (c->ended || !c->started) continue;
        if (!found || importance(c) > importance(found)) found = c;
    }
    return found;
}

const tr__record_call *tr__record_last(const tr__record *r)
{
    const tr__record_call *found = NULL;
    for (int i = 0; i < r->call_count; i++)
        if (r->calls[i].ended && (!found || r->calls[i].ended >= found->ended)) found = &r->calls[i];
    return found;
}
