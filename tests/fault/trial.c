#include "trial.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DISTURBED_MOST = 3, STRIKE_US = 4000, PAUSE_MS = 200, PAGE = 4096 };

static const struct {
    const char *name, *transport;
    int hosts[RANKS];
} layouts[LAYOUTS] = {
    {"shared memory", "shm", {0}},
    {"TCP", "tcp", {0}},
    {"two hosts", "", {0, 0, 1, 1}},
    {"two hosts in turn", "", {0, 1, 0, 1}},
};
const char *const layout_names[LAYOUTS] = {"shared memory", "TCP", "two hosts", "two hosts in turn"};

/* ---- What each fault may lead to --------------------------------------------------------------------------------- */

#define LOST_PEER "rank [0-3].*(lost its connection|cannot be reached|sent a damaged message|does not take our call)"
/* What the launcher says; %d: of whom. */
#define KILLED "rank %d \\(pid [0-9]+\\) was killed by signal 9"
/* A message that is refused, or never whole. */
#define MISHEARD "rank [0-3]"
/* A checkpoint that is refused, or passed over for an older one; where the damage makes a header unreadable, whatever its reader
 * says of that file. */
#define DAMAGED "/out/checkpoint-[0-9]+/[a-z]+\\.(safetensors|json): |/out.*(is damaged|is missing|is cut short|belongs to another|checksum|manifest|is no |not a safetensors|became shorter)"

static const struct rule {
    const char *name;
    int weight;
    const char *words; /* of an attempt that fails: one of these must be said, of the rank %d; NULL: it must not fail */
    bool sockets;      /* only where ranks use TCP */
    bool damages;      /* files may then be other than what was saved */
} rules[FAULT_KINDS] = {
    [FAULT_NONE] = {"nothing", 0, NULL, false, false},
    [FAULT_FLIP_WRITE] = {"a bit flipped in a write", 8, KILLED "|" DAMAGED, false, true},
    [FAULT_TORN_WRITE] = {"a page torn from a write", 8, KILLED "|" DAMAGED, false, true},
    [FAULT_FLIP_READ] = {"a bit flipped in a read", 8, DAMAGED, false, false},
    [FAULT_FILE_PARTS] = {"reads and writes in parts", 3, NULL, false, false},
    [FAULT_NO_SPACE] = {"no space left", 6, "/disk.*No space left on device", false, false},
    [FAULT_FILE_ERROR] = {"an input or output error", 6, "/disk.*Input/output error", false, false},
    [FAULT_KILL_IN_CALL] = {"rank 0 killed in a call", 8, KILLED, false, false},
    [FAULT_CRASH] = {"a crash of the machine", 14, "", false, false},
    [FAULT_LOST_SYNC] = {"syncs that are lost, and a crash", 6, "", false, true},
    [FAULT_ROT] = {"a checkpoint damaged at rest", 8, KILLED, false, false},
    [FAULT_SOCKET_PARTS] = {"sends and receives in parts", 4, NULL, true, false},
    [FAULT_SOCKET_BUSY] = {"busy sockets", 3, NULL, true, false},
    [FAULT_SOCKET_STALL] = {"a socket that stalls", 3, NULL, true, false},
    [FAULT_SOCKET_RESET] = {"a connection reset", 5, LOST_PEER, true, false},
    [FAULT_SOCKET_CUT] = {"a connection cut in a message", 5, LOST_PEER, true, false},
    [FAULT_SOCKET_FLIP] = {"a bit flipped on the wire", 5, LOST_PEER, true, false},
    [FAULT_SOCKET_DROP] = {"bytes lost on the wire", 4, MISHEARD, true, false},
    [FAULT_SOCKET_REPEAT] = {"bytes repeated on the wire", 4, MISHEARD, true, false},
    [FAULT_SOCKET_SWAP] = {"bytes swapped on the wire", 4, MISHEARD, true, false},
    [FAULT_CLOCK] = {"a clock that jumps", 2, NULL, false, false},
    [FAULT_KILL] = {"a rank killed", 12, KILLED, false, false},
    [FAULT_KILL_LAUNCHER] = {"the launcher killed", 6, "", false, false},
    [FAULT_STOP] = {"a rank stopped for a while", 4, NULL, false, false},
};

/* ---- A trial ----------------------------------------------------------------------------------------------------- */

typedef struct trial {
    uint64_t draw;
    defect defect;
    int layout;
    const golden *golden;
    attempt attempt;
    int step, saved; /* what the training has come to, and what has been reported as saved for good: the latter */
    int promised;    /* when the attempt began */
    bool damaged;    /* files may be other than what was saved, */
    bool unsynced;   /* or not be there */
    bool finished;
    char *wrong;
    FILE *told;
} trial;

static int64_t below(trial *t, int64_t limit)
{
    return draw_below(&t->draw, limit);
}

/* A fault can only hit what there is. */
static int weight_of(const trial *t, int kind)
{
    bool tcp = strcmp(layouts[t->layout].transport, "shm") != 0;
    if (rules[kind].sockets && !tcp) return 0;
    return kind == FAULT_FLIP_READ && t->saved < 0 ? 0 : rules[kind].weight;
}

static fault_kind draw_kind(trial *t)
{
    int sum = 0, kind = 0;
    for (int i = 0; i < FAULT_KINDS; i++) sum += weight_of(t, i);
    for (int64_t left = below(t, sum);; kind++)
        if ((left -= weight_of(t, kind)) < 0) return (fault_kind)kind;
}

/* A number of a call, of as many as the rest of a training makes. */
static int64_t draw_call(trial *t, int64_t calls)
{
    return below(t, calls * (STEPS - t->step) / STEPS + 1);
}

static fault draw_fault(trial *t)
{
    fault f = {.kind = draw_kind(t), .draw = draw_next(&t->draw)};
    const golden *g = t->golden;
    f.victim = (int)below(t, RANKS);
    f.moment = MOMENT_STARTED + (int)below(t, STEPS - t->step + 3);
    f.delay_us = (int)below(t, STRIKE_US);
    f.pause_ms = 1 + (int)below(t, PAUSE_MS);
    if (rules[f.kind].sockets)
        do f.rank = (int)below(t, RANKS);
        while (!g->counts[f.rank].sends); /* ranks that have no other host's to talk to */
    switch (f.kind) {
    case FAULT_FLIP_WRITE:
    case FAULT_TORN_WRITE: f.at = draw_call(t, g->counts[0].writes); break;
    case FAULT_FLIP_READ: f.at = below(t, g->reads); break;
    default: f.at = draw_call(t, rules[f.kind].sockets ? g->counts[f.rank].sends : g->counts[0].files); break;
    }
    if (f.kind == FAULT_LOST_SYNC) f.until = f.at + 1 + draw_call(t, g->counts[0].files / 2);
    if (f.kind == FAULT_FLIP_WRITE || f.kind == FAULT_TORN_WRITE) /* after it has come */
        f.moment = MOMENT_STEP + (int)(f.at * STEPS / (g->counts[0].writes + 1)) + 1 + (int)below(t, 2);
    return f;
}

static bool says(const char *text, const char *pattern)
{
    regex_t r;
    if (regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB | REG_NEWLINE) != 0) abort();
    bool found = regexec(&r, text, 0, NULL, 0) == 0;
    regfree(&r);
    return found;
}

static bool told_wrong(trial *t, const char *what)
{
    object(t->wrong, "%s; it said (exit code %d):\n%.4000s", what, t->attempt.exit_code, t->attempt.output);
    return false;
}

/* What a checkpoint was reported to hold must be there again; or it was damaged, and is said to be. Only syncs that did
 * nothing leave nothing to tell of. */
static bool check_resumed(trial *t)
{
    const fault_page *p = t->attempt.page;
    int resumed = atomic_load(&p->resumed);
    bool misread = p->fault.kind == FAULT_FLIP_READ && atomic_load(&p->fired);
    if (resumed < 0 || resumed >= t->promised || t->unsynced) return true;
    if ((t->damaged || misread) && says(t->attempt.output, DAMAGED)) {
        if (t->damaged && atomic_load(&p->saved) < 0) t->saved = resumed; /* the damaged one is not told of again */
        return true;
    }
    char what[128];
    snprintf(what, sizeof what, "it goes on from step %d, though step %d had been saved", resumed, t->promised);
    return told_wrong(t, what);
}

static bool run(trial *t, const fault *f)
{
    fault_page *p = t->attempt.page;
    t->promised = t->saved;
    memset(p, 0, sizeof *p);
    p->fault = *f;
    p->defect = t->defect;
    snprintf(p->folder, sizeof p->folder, "%s/disk", t->attempt.dir);
    snprintf(p->transport, sizeof p->transport, "%s", layouts[t->layout].transport);
    memcpy(p->hosts, layouts[t->layout].hosts, sizeof p->hosts);
    atomic_store(&p->resumed, -1);
    atomic_store(&p->saved, -1);
    if (!attempt_run(&t->attempt, t->wrong)) return told_wrong(t, "it did not end well");
    if (t->told)
        fprintf(t->told, "  %s: %s (exit code %d, from step %d, saved %d)\n", rules[f->kind].name,
                p->fired ? p->what[0] ? p->what : "done" : "it did not come to that", t->attempt.exit_code,
                atomic_load(&p->resumed), atomic_load(&p->saved));
    if (rules[f->kind].damages && atomic_load(&p->fired)) t->damaged = true;
    if (f->kind == FAULT_LOST_SYNC && atomic_load(&p->fired)) t->unsynced = true;
    if (atomic_load(&p->resumed) >= 0) t->step = atomic_load(&p->resumed);
    if (atomic_load(&p->saved) >= 0) t->step = t->saved = atomic_load(&p->saved);
    t->finished = t->attempt.exit_code == 0;
    return true;
}

/* ---- Damage at rest ---------------------------------------------------------------------------------------------- */

static void damage_file(trial *t, const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat s;
    char page[PAGE] = {0};
    if (fd < 0 || fstat(fd, &s) != 0 || !s.st_size) return;
    off_t at = below(t, s.st_size);
    switch (below(t, 3)) {
    case 0: /* a bit */
        (void)!pread(fd, page, 1, at);
        page[0] ^= (char)(1 << below(t, 8));
        (void)!pwrite(fd, page, 1, at);
        break;
    case 1: /* a page */
        at -= at % PAGE;
        (void)!pwrite(fd, page, (size_t)(s.st_size - at < PAGE ? s.st_size - at : PAGE), at);
        break;
    default: (void)!ftruncate(fd, at); break;
    }
    close(fd);
    if (t->told) fprintf(t->told, "  then %s is damaged at byte %lld\n", path, (long long)at);
}

static void damage_checkpoint(trial *t)
{
    static const char *const names[] = {"model.safetensors", "state.safetensors", "history.safetensors", "manifest.json"};
    char path[PATH_MAX];
    const char *name = names[below(t, 4)];
    if (t->saved < 0) return;
    t->damaged = true;
    snprintf(path, sizeof path, "%s/disk/out/checkpoint-%d/%s", t->attempt.dir, t->saved, name);
    damage_file(t, path);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Only what docs/training.md tells of may be left. */
static bool check_left(trial *t)
{
    static const char *const known[] = {"checkpoint-[0-9]*", "damaged-checkpoint-[0-9]*", "metrics.csv",
                                        "metrics-to-[0-9]*.csv", "loss.svg"};
    char path[PATH_MAX];
    bool well = true;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", t->attempt.dir, i ? "tmp" : "disk/out");
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d));) {
            bool fine = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
            for (size_t k = 0; k < sizeof known / sizeof *known && !i; k++) fine |= fnmatch(known[k], e->d_name, 0) == 0;
            if (!fine) well = object(t->wrong, "%s/%s is left behind", path, e->d_name);
        }
        if (d) closedir(d);
    }
    return well;
}

/* Undisturbed, it comes to its end; or refuses, and says so, what was damaged. */
static bool finish(trial *t)
{
    char expected[PATH_MAX + 16], folder[PATH_MAX];
    const fault none = {0};
    if (!run(t, &none) || !check_resumed(t)) return false;
    if (!t->finished && t->damaged && says(t->attempt.output, DAMAGED)) return true;
    if (!t->finished) return told_wrong(t, "undisturbed, it fails");
    snprintf(folder, sizeof folder, "%s/disk/out", t->attempt.dir);
    snprintf(expected, sizeof expected, "%s/disk/out", t->golden->dir);
    if (!compare_trainings(folder, expected, t->wrong)) return told_wrong(t, "that is no undisturbed training");
    return check_left(t);
}

/* Does a failed attempt say what it is to say of the fault? */
static bool names_cause(const trial *t, const fault *f)
{
    char words[512], killed[128];
    snprintf(killed, sizeof killed, KILLED, f->victim);
    if (!atomic_load(&t->attempt.page->fired)) return says(t->attempt.output, killed);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(words, sizeof words, rules[f->kind].words, f->kind == FAULT_KILL_IN_CALL ? 0 : f->victim);
#pragma GCC diagnostic pop
    return says(t->attempt.output, words);
}

static bool disturb(trial *t)
{
    const fault f = draw_fault(t);
    bool was_damaged = t->damaged;
    if (!run(t, &f) || !check_resumed(t)) return false;
    if (f.kind == FAULT_ROT) damage_checkpoint(t);
    if (t->finished) return true;
    if (was_damaged && says(t->attempt.output, DAMAGED)) return true; /* that of an earlier attempt */
    if (!rules[f.kind].words) return told_wrong(t, "it fails, and need not");
    return names_cause(t, &f) || told_wrong(t, "its error does not name the cause");
}

static void make_folders(const char *dir)
{
    static const char *const names[] = {"", "/disk", "/tmp"};
    char path[PATH_MAX];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", dir, names[i]);
        mkdir(path, 0700);
    }
}

static trial *new_trial(int layout, const char *dir, char wrong[TEXT])
{
    trial *t = calloc(1, sizeof *t);
    if (!t) abort();
    make_folders(dir);
    t->layout = layout;
    t->saved = -1;
    t->wrong = wrong;
    t->attempt.dir = dir;
    t->attempt.page = attempt_page(dir);
    return t;
}

static void free_trial(trial *t)
{
    munmap(t->attempt.page, sizeof *t->attempt.page);
    free(t);
}

bool golden_make(golden *g, int layout, const char *dir, char wrong[TEXT])
{
    snprintf(g->dir, sizeof g->dir, "%s", dir);
    const fault none = {0};
    trial *t = new_trial(layout, g->dir, wrong);
    bool well = run(t, &none) && t->finished;
    memcpy(g->counts, t->attempt.page->counts, sizeof g->counts);
    if (well) well = run(t, &none) && t->finished;
    g->reads = t->attempt.page->counts[0].reads;
    if (!well) told_wrong(t, "undisturbed, it fails");
    free_trial(t);
    return well;
}

bool trial_run(const trial_options *o, const golden goldens[LAYOUTS], const char *dir, char wrong[TEXT])
{
    uint64_t draw = o->seed;
    trial *t = new_trial((int)draw_below(&draw, LAYOUTS), dir, wrong);
    t->draw = draw;
    t->defect = o->defect;
    t->golden = &goldens[t->layout];
    t->told = o->told;
    if (t->told) fprintf(t->told, "seed %llu, ranks on %s\n", (unsigned long long)o->seed, layouts[t->layout].name);
    bool well = true;
    for (int64_t i = 1 + below(t, DISTURBED_MOST); i > 0 && well && !t->finished; i--) well = disturb(t);
    well = well && finish(t);
    free_trial(t);
    return well;
}
