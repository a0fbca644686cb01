/* trireme doctor: what this machine and this build offer to training, what is wrong, and what to do about it. */
#include "clock.h"
#include "command.h"
#include "options.h"
#include "system.h"

#include <trireme/trireme.h>

#include "trireme_config.h"

#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

extern char **environ;

typedef enum verdict { OK, WARNING, WRONG } verdict;

typedef struct findings {
    int count[WRONG + 1];
} findings;

/* One line for what was found; advice, on a line of its own, when something is to be done. */
static void say(findings *f, verdict v, const char *advice, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void say(findings *f, verdict v, const char *advice, const char *format, ...)
{
    static const char *const names[] = {"ok", "warning", "wrong"};
    va_list arguments;
    va_start(arguments, format);
    printf("%-9s", names[v]);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    if (advice) printf("         -> %s\n", advice);
    fflush(stdout);
    f->count[v]++;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static bool is_number(const char *text)
{
    char *end;
    return strtol(text, &end, 10) >= 1 && !*end;
}

/* Does the word stand in `known`, there with a space on both sides? Where `known` begins with a comma, all words between commas? */
static bool are_words(const char *text, const char *known)
{
    bool several = *known == ',';
    for (size_t n; *text; text += n + (text[n] == ',')) {
        n = strcspn(text, several ? "," : "");
        char word[16];
        snprintf(word, sizeof word, " %.*s ", (int)n, text);
        if (n && (memchr(text, ' ', n) || !strstr(known, word))) return false;
    }
    return true;
}

/* What is wrong is taken out of the environment, for it would make all that follows fail. */
static void check_settings(findings *f)
{
    static const struct { const char *name, *words, *wanted; } known[] = {
        {"TRIREME_THREADS", NULL, "a whole number of 1 or more"},
        {"TRIREME_CPU_DEVICES", NULL, "a whole number of 1 or more"},
        {"LOCAL_WORLD_SIZE", NULL, "a whole number of 1 or more"},
        {"TRIREME_TIMEOUT", NULL, "a whole number of seconds, 1 or more"},
        {"TRIREME_CHECK", ", 0 1 nan inf sync wire replicas ",
         "1, nan, inf, sync, wire or replicas, or several with commas between"},
        {"TRIREME_ISA", " generic avx2 avx512 avx512bf16 amx ", "generic, avx2, avx512, avx512bf16 or amx"},
        {"TRIREME_ENCRYPT", " 0 1 ", "0 or 1"},
        {"TRIREME_LOG", " off error warn info debug ", "off, error, warn, info or debug"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *text = getenv(known[i].name), *words = known[i].words;
        if (!text || !*text || (words ? are_words(text, words) : is_number(text))) continue;
        char advice[128];
        snprintf(advice, sizeof advice, "set it to %s, or unset %s", known[i].wanted, known[i].name);
        say(f, WRONG, advice, "environment: %s=%.60s makes no sense", known[i].name, text);
        unsetenv(known[i].name);
    }
}

/* ---- The checks -------------------------------------------------------------------------------------------------- */

static void check_build(findings *f)
{
    struct utsname u;
    uname(&u);
    say(f, OK, NULL, "trireme %s, built with %s; %s %s on %s", tr_version(), TR__COMPILER, u.sysname, u.release, u.machine);
}

static void check_cores(findings *f)
{
    cpu_set_t set;
    int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    double quota = tr__core_quota(), load;
    int threads = tr_threads(tr_cpu(0));
    say(f, OK, NULL, "cores: %d of %ld usable, %d CPU device%s with %d thread%s", usable, online,
        tr_device_count(TR_CPU), tr_device_count(TR_CPU) == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
    if (quota < threads * tr_device_count(TR_CPU))
        say(f, WARNING, "give fewer threads (--threads), or this control group more time",
            "core quota: the control group gives %.1f cores' time, and threads beyond it are stopped and started", quota);
    if (getloadavg(&load, 1) == 1 && load > 0.5 * usable)
        say(f, WARNING, "end what else is running: ranks wait for the slowest among them",
            "load: %.1f processes were running on %d cores in the last minute", load, usable);
}

static void check_instructions(findings *f)
{
    static const char *const wanted[] = {"avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16",
        "amx_tile", "amx_bf16", "asimd", "sve", "bf16"};
    char flags[8192], found[256] = "";
    if (!tr__line_of("/proc/cpuinfo", "flags", flags, sizeof flags) && !tr__line_of("/proc/cpuinfo", "Features", flags, sizeof flags))
        flags[0] = '\0';
    for (char *flag = strtok(flags, " \n"); flag; flag = strtok(NULL, " \n"))
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if (!strcmp(flag, wanted[i]))
                snprintf(found + strlen(found), sizeof found - strlen(found), " %s", flag);
    bool fast = strstr(found, " avx2") || strstr(found, " asimd");
    say(f, fast ? OK : WARNING, fast ? NULL : "use a processor, or a virtual machine's processor model, with AVX2 at least",
        "instructions:%s", *found ? found : " no vector instructions that Trireme has kernels for");
}

static void check_memory(findings *f)
{
    double total = tr__meminfo_gib("MemTotal"), available = tr__meminfo_gib("MemAvailable"), limit = tr__memory_limit_gib();
    bool limited = limit < total, little = fmin(available, limit) < 1;
    char group[64] = "";
    if (limited) snprintf(group, sizeof group, ", of which the control group gives %.1f", limit);
    say(f, little ? WARNING : OK, little ? "end what else uses memory; a small GPT takes 1 GiB per rank" : NULL,
        "memory: %.1f GiB, %.1f available%s", total, available, group);
    char text[128];
    if (tr__first_line("/proc/sys/vm/overcommit_memory", text, sizeof text) && *text == '2')
        say(f, WARNING, "sysctl vm.overcommit_memory=0, or keep memory in reserve",
            "overcommit: the kernel promises no more memory than it has, so ranks may be refused memory early");
    if (tr__first_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) && strstr(text, "[never]"))
        say(f, WARNING, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            "huge pages: switched off, which makes optimizer steps up to twice as slow");
}

/* Multiplies matrices for 0.2 s as a training step would. Returns GFLOP/s of the fastest product, 0 on failure. */
static double measure_matmul(void)
{
    enum { n = 1024 };
    TR_SCOPE;
    tr_tensor *a = tr_randn(1, TR_SHAPE(n, n)), *b = tr_randn(2, TR_SHAPE(n, n));
    double fastest = INFINITY; /* microseconds */
    for (double end = tr__now_us() + 2e5, at = 0; at < end;) {
        TR_SCOPE;
        double begin = tr__now_us();
        if (tr_status_of(tr_matmul(a, b)) != TR_OK) return 0;
        at = tr__now_us();
        fastest = fmin(fastest, at - begin);
    }
    return 2.0 * n * n * n / fastest * 1e-3;
}

static void check_matrix_engine(findings *f)
{
    const dnnl_version_t *v = dnnl_version();
    double speed = measure_matmul(); /* first, as this tells oneDNN of TRIREME_ISA */
    const char *isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa()), *prefix = "cpu_isa_";
    if (!strncmp(isa, prefix, strlen(prefix))) isa += strlen(prefix);
    int threads = tr_threads(tr_cpu(0));
    if (speed > 0)
        say(f, OK, NULL, "matrix engine: oneDNN %d.%d.%d with %s kernels: %.0f GFLOP/s in f32 on %d thread%s", v->major,
            v->minor, v->patch, isa, speed, threads, threads == 1 ? "" : "s");
    else
        say(f, WRONG, "reinstall the oneDNN library (on Debian: libdnnl2)", "matrix engine: oneDNN %d.%d.%d fails: %s", v->major,
            v->minor, v->patch, tr_error_message());
}

static void check_shared_memory(findings *f)
{
    const size_t bytes = 16 << 20;
    char *memory = tr_shared_alloc(bytes);
    if (!memory) {
        say(f, WRONG, "allow memfd_create in this container or sandbox", "shared memory: %s", tr_error_message());
        return;
    }
    memset(memory, 1, bytes);
    tr_shared_free(memory);
    say(f, OK, NULL, "shared memory: works (the size of /dev/shm and ulimit -l do not matter)");
}

static void check_launcher(findings *f)
{
    tr_launch_report report;
    if (tr_launch(((const char *const[]){"/bin/sh", "-c", "exit 0", NULL}), 2, .report = &report) == TR_OK)
        say(f, OK, NULL, "launcher: 2 ranks start and end in %.0f ms", report.seconds * 1e3);
    else
        say(f, WRONG, "allow processes, loopback sockets and signals in this container or sandbox", "launcher: %s",
            tr_error_message());
    struct rlimit files;
    bool few = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 1024;
    say(f, few ? WARNING : OK, few ? "ulimit -n 4096" : NULL, "open files: up to %llu", (unsigned long long)files.rlim_cur);
}

static void check_optional(findings *f)
{
    say(f, OK, NULL, TR__HAVE_MPI ? "MPI: built in" : "MPI: not built in (jobs on one machine need none)");
    int gpus = tr_device_count(TR_CUDA);
    bool gpu_here = access("/dev/nvidia0", F_OK) == 0;
    tr_device first;
    if (gpus > 0) say(f, OK, NULL, "CUDA: %d device%s", gpus, gpus == 1 ? "" : "s");
    else if (tr_device_parse("cuda:0", &first) != TR_OK)
        say(f, gpu_here ? WARNING : OK, gpu_here ? "build the plug-in (`cmake --build build --target trireme_cuda`), and check the driver "
            "with nvidia-smi" : NULL, "CUDA: %s", tr_error_message());
}

static void check_environment(findings *f)
{
    static const struct { const char *name, *effect; } known[] = {
        {"OMP_PROC_BIND=", "binds the main thread, and so all of Trireme's threads, to one core"},
        {"OMP_PLACES=", "binds the main thread, and so all of Trireme's threads, to one place"},
        {"GOMP_CPU_AFFINITY=", "binds the main thread, and so all of Trireme's threads, to one core"},
        {"KMP_AFFINITY=", "may bind all of Trireme's threads to one core"},
        {"OMP_", "is not read by Trireme, but by PyTorch and others beside it"},
        {"OPENBLAS_", "is not read by Trireme, but makes PyTorch and NumPy slower when it names another processor"},
        {"MKL_", "is not read by Trireme, but by PyTorch and NumPy beside it"},
        {"DNNL_", "changes which kernels oneDNN takes, or makes it print"},
        {"ONEDNN_", "changes which kernels oneDNN takes, or makes it print"},
        {"RANK=", "makes programs that are started without `trireme run` wait for other ranks"},
        {"WORLD_SIZE=", "makes programs that are started without `trireme run` wait for other ranks"},
        {"TRIREME_TOKEN=", "belongs to a job, and is of no use outside of it"},
    };
    int found = 0;
    for (char **entry = environ; *entry; entry++) {
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (strncmp(*entry, known[i].name, strlen(known[i].name)) != 0) continue;
            char advice[128];
            int name = (int)strcspn(*entry, "=");
            bool secret = !strncmp(*entry, "TRIREME_TOKEN=", 14); /* and what a doctor prints is shown around */
            snprintf(advice, sizeof advice, "unset %.*s", name, *entry);
            say(f, WARNING, advice, "environment: %.*s %s%s", secret ? name : 60, *entry, secret ? "is set; it " : "",
                known[i].effect);
            found++;
            break;
        }
    }
    if (!found) say(f, OK, NULL, "environment: nothing left over that changes speed");
}

int tr__cli_doctor(int argc, char **argv)
{
    const tr__option options[] = {{0}};
    const tr__syntax syntax = {"doctor", NULL,
        "Says what this machine and this build offer to training, what is wrong, and what to do about it.\n"
        "The exit code is 1 when something is wrong; warnings do not count.", options, .operands = {0, 0}};
    int status = tr__parse(&syntax, &argc, argv);
    if (status >= 0) return status;

    static void (*const checks[])(findings *) = {check_build, check_settings, check_cores, check_instructions, check_memory,
        check_matrix_engine, check_shared_memory, check_launcher, check_optional, check_environment};
    findings f = {0};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) checks[i](&f);
    printf("\n%d ok, %d warning%s, %d wrong\n", f.count[OK], f.count[WARNING], f.count[WARNING] == 1 ? "" : "s", f.count[WRONG]);
    return f.count[WRONG] ? TR__EXIT_FAILED : tr__printed("doctor");
}
