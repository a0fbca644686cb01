/*
 * A simulator of faults (fault.h). Each seed is a trial: a training is disturbed up to three times, and goes on after
 * each; then it is left alone. At the end its weights, its optimizer's state and its metrics are those of a training
 * that nothing has disturbed, bit for bit, or it has said what was wrong; and nothing of it is left, neither processes
 * nor files.
 *
 *   -runs=N -seed=S   N trials, with seeds S, S + 1, …; -runs=1 with a seed that was printed repeats one
 *   -defect=NAME      with a defence taken out of the training; succeeds when a seed finds that
 *   -defects          each of them in turn
 *   -jobs=J           so many at a time; by default two
 *   -v -keep          tell each attempt; keep the folders
 *
 * ctest: serial timeout=300
 */
#include "trial.h"

#include <ftw.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOBS_MOST = 1024 };

static const char *const defect_names[DEFECTS] = {"none", "sync", "folder-sync", "checksum", "row", "state", "wire"};

static struct {
    unsigned long long runs, seed;
    int jobs;
    bool keep, told;
    char dir[PATH_MAX - 64];
    golden goldens[LAYOUTS];
} all = {.runs = 20, .seed = 1, .jobs = 2};

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *ftw)
{
    (void)s, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_folder(const char *path)
{
    if (!all.keep) nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- Before the trials ------------------------------------------------------------------------------------------- */

static bool begin(void)
{
    char path[PATH_MAX];
    const char *tmp = getenv("TMPDIR");
    snprintf(all.dir, sizeof all.dir, "%s/trireme-faults-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(all.dir)) return fprintf(stderr, "no folder %s: %s\n", all.dir, strerror(errno)), false;
    snprintf(path, sizeof path, "%s/text", all.dir);
    FILE *f = fopen(path, "we");
    if (!f) return false;
    for (int i = 0; i < 200; i++) fprintf(f, "line %d of %d: three banks of oars, and one beat\n", i * i % 41, i);
    return fclose(f) == 0;
}

/* The process that runs a trial becomes the parent of all orphans, and computes; it is forked by one that does not. */
static bool in_child(bool (*body)(void *), void *arg)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) _exit(body(arg) ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

typedef struct golden_call {
    golden *made; /* in shared memory */
    int layout;
} golden_call;

static bool make_golden(void *arg)
{
    const golden_call *c = arg;
    char dir[PATH_MAX], wrong[TEXT] = "";
    snprintf(dir, sizeof dir, "%s/golden-%d", all.dir, c->layout);
    if (golden_make(c->made, c->layout, dir, wrong)) return true;
    fprintf(stderr, "undisturbed, on %s:\n%s", layout_names[c->layout], wrong);
    return false;
}

static bool make_goldens(void)
{
    golden *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return false;
    bool well = true;
    for (int i = 0; i < LAYOUTS && well; i++) {
        well = in_child(make_golden, &(golden_call){made, i});
        all.goldens[i] = *made;
    }
    munmap(made, sizeof *made);
    return well;
}

/* ---- Trials ------------------------------------------------------------------------------------------------------ */

/* Exits with 0 when all is as it should be, else prints what is not and how to repeat it. */
static void try_seed(unsigned long long seed, defect d) __attribute__((noreturn));
static void try_seed(unsigned long long seed, defect d)
{
    char dir[PATH_MAX], wrong[TEXT] = "", *words = NULL;
    size_t length = 0;
    snprintf(dir, sizeof dir, "%s/%s-%llu", all.dir, defect_names[d], seed);
    FILE *told = open_memstream(&words, &length);
    bool well = trial_run(&(trial_options){seed, d, told}, all.goldens, dir, wrong);
    fclose(told);
    if (all.told || (!well && !d)) fputs(words, stdout);
    if (!well && d)
        printf("%s, seed %llu: %.*s\n", defect_names[d], seed, (int)strcspn(wrong, "\n;"), wrong);
    else if (!well)
        printf("%sFAILED: fault_simulator -runs=1 -seed=%llu\n", wrong, seed);
    fflush(stdout);
    remove_folder(dir);
    _exit(well ? 0 : 1);
}

/* Returns how many seeds were tried until all are, or one has found the defect; *failed of them. */
static unsigned long long try_seeds(defect d, unsigned long long *failed, unsigned long long *first)
{
    unsigned long long next = 0, ended = 0, seeds[JOBS_MOST];
    pid_t pids[JOBS_MOST] = {0};
    *failed = 0;
    while (ended < next || (next < all.runs && (!d || !*failed))) {
        int free_job = 0, status;
        while (free_job < all.jobs && pids[free_job]) free_job++;
        if (free_job < all.jobs && next < all.runs && (!d || !*failed)) {
            seeds[free_job] = all.seed + next++;
            pids[free_job] = fork();
            if (pids[free_job] == 0) try_seed(seeds[free_job], d);
            if (pids[free_job] > 0) continue;
            perror("fork");
            exit(1);
        }
        pid_t pid = wait(&status);
        for (int i = 0; i < all.jobs; i++) {
            if (pids[i] != pid) continue;
            pids[i] = 0;
            ended++;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
            if (!(*failed)++ || seeds[i] < *first) *first = seeds[i];
        }
    }
    return ended;
}

static bool run_trials(void)
{
    unsigned long long failed, first, ran = try_seeds(DEFECT_NONE, &failed, &first);
    printf("%llu trials from seed %llu on, %llu failed\n", ran, all.seed, failed);
    return !failed;
}

static bool find_defect(defect d)
{
    unsigned long long failed, first = 0, ran = try_seeds(d, &failed, &first);
    if (failed)
        printf("%s: found by seed %llu\n", defect_names[d], first);
    else
        printf("%s: NOT found by %llu seeds from %llu on\n", defect_names[d], ran, all.seed);
    fflush(stdout);
    return failed > 0;
}

static bool find_defects(void)
{
    bool well = true;
    for (int d = DEFECT_NONE + 1; d < DEFECTS; d++) well &= find_defect((defect)d);
    return well;
}

/* False: what was said is not known. */
static bool parse(const char *word, int *d, bool *defects)
{
    int n = 0;
    if (strcmp(word, "-v") == 0) return all.told = true;
    if (strcmp(word, "-keep") == 0) return all.keep = true;
    if (strcmp(word, "-defects") == 0) return *defects = true;
    for (int i = DEFECT_NONE + 1; i < DEFECTS; i++)
        if (strncmp(word, "-defect=", 8) == 0 && strcmp(word + 8, defect_names[i]) == 0) *d = i;
    if (strncmp(word, "-defect=", 8) == 0) return *d != DEFECT_NONE;
    if (sscanf(word, "-jobs=%d%n", &all.jobs, &n) == 1 && !word[n]) return all.jobs > 0 && all.jobs <= JOBS_MOST;
    return sscanf(word, "-runs=%llu", &all.runs) == 1 || sscanf(word, "-seed=%llu", &all.seed) == 1;
}

int main(int argc, char **argv)
{
    int d = DEFECT_NONE;
    bool defects = false, known = true;
    for (int i = 1; i < argc; i++) known &= parse(argv[i], &d, &defects);
    if (!known) {
        fprintf(stderr, "%s [-runs=N] [-seed=S] [-defects | -defect=NAME] [-jobs=J] [-v] [-keep]\n", argv[0]);
        return 2;
    }
    bool well = begin() && make_goldens();
    if (well) well = defects ? find_defects() : d ? find_defect((defect)d) : run_trials();
    if (all.keep) printf("%s\n", all.dir);
    remove_folder(all.dir);
    return well ? 0 : 1;
}
