/* What every result says of itself: what was measured, when, on which machine, and by which versions. */
#include "bench_result.h"

#include "options.h"
#include "system.h"

#include <trireme/trireme.h>
#include <trireme_commit.h>

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* "Intel(R) Xeon(R) Platinum 8488C" and what it multiplies by: "Intel Xeon, AMX". Maker and line are the first two
 * words that are no numbers; bench/peer/machine.py does the same. */
static void name_family(const char *name, const char *flags, char *family, size_t size)
{
    char plain[256], word[64];
    size_t length = 0;
    bool bracket = false; /* in (R) or (TM) */
    for (const char *c = name; *c && length + 1 < sizeof plain; c++) {
        bracket = (bracket || *c == '(') && *c != ')';
        if (!bracket && *c != ')') plain[length++] = *c;
    }
    plain[length] = 0;
    const char *maker = strstr(plain, "Intel") ? strstr(plain, "Intel") : plain;
    int words = 0, taken = 0;
    for (family[0] = 0; words < 2 && sscanf(maker, " %63s%n", word, &taken) == 1; maker += taken, words++) {
        if (strpbrk(word, "0123456789@") || !strcmp(word, "CPU") || !strcmp(word, "Processor")) break;
        snprintf(family + strlen(family), size - strlen(family), "%s%s", words ? " " : "", word);
    }
    const char *vectors = strstr(flags, "amx_bf16")      ? "AMX"
                          : strstr(flags, "avx512_bf16") ? "AVX-512 BF16"
                          : strstr(flags, "avx512f")     ? "AVX-512"
                          : strstr(flags, "avx2")        ? "AVX2"
                          : strstr(flags, "asimd")       ? "NEON"
                                                         : "no vectors";
    snprintf(family + strlen(family), size - strlen(family), "%s%s", words ? ", " : "", vectors);
}

cJSON *tr__result_new(const char *peer_version, const char *bench, ...)
{
    char text[256], line[256], flags[8192] = "", family[320], date[32];
    va_list args;
    va_start(args, bench);
    vsnprintf(text, sizeof text, bench, args);
    va_end(args);
    if (!tr__line_of("/proc/cpuinfo", "model name", line, sizeof line)) strcpy(line, "unknown");
    const char *name = line + strspn(line, " \t");
    line[strcspn(line, "\n")] = 0;
    if (!tr__line_of("/proc/cpuinfo", "flags", flags, sizeof flags) &&
        !tr__line_of("/proc/cpuinfo", "Features", flags, sizeof flags))
        flags[0] = 0;
    name_family(name, flags, family, sizeof family);
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));

    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "bench", text);
    cJSON_AddStringToObject(o, "date", date);
    cJSON_AddStringToObject(o, "commit", TRIREME_COMMIT);
    cJSON *machine = cJSON_AddObjectToObject(o, "machine"), *versions = cJSON_AddObjectToObject(o, "versions");
    cJSON_AddStringToObject(machine, "family", family);
    cJSON_AddStringToObject(machine, "name", name);
    cJSON_AddNumberToObject(machine, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    cJSON_AddStringToObject(versions, "trireme", tr_version());
    if (peer_version && *peer_version)
        cJSON_AddStringToObject(versions, "peer", peer_version);
    else
        cJSON_AddNullToObject(versions, "peer");
    return o;
}

void tr__add_numbers(cJSON *object, const tr__number *n)
{
    for (; n->key; n++) cJSON_AddNumberToObject(object, n->key, n->value);
}

/* Can a file take the path's place in one step? Not that of /dev/stdout, a link to no file, or another user's file or folder. */
static bool can_replace(const char *path)
{
    struct stat s;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    bool plain = lstat(path, &s) != 0 || (S_ISREG(s.st_mode) && s.st_uid == geteuid() && access(path, W_OK) == 0);
    return plain && access(dirname(folder), W_OK) == 0;
}

static tr_status write_text(const char *path, const char *text)
{
    char real[PATH_MAX]; /* a link stays */
    if (realpath(path, real)) path = real;
    if (can_replace(path)) return tr_write_file(path, text, strlen(text));
    FILE *f = fopen(path, "w");
    bool written = f && fputs(text, f) >= 0;
    if (f && fclose(f) != 0) written = false;
    return written ? TR_OK : tr_fail(TR_IO, "cannot write %s: %s", path, strerror(errno));
}

int tr__check_writable(const char *command, const char *path)
{
    struct stat s;
    if (!path) return -1;
    if (stat(path, &s) == 0 && S_ISFIFO(s.st_mode)) /* not opened: a reader that is there would take our closing for the end */
        return access(path, W_OK) == 0 ? -1 : tr__complain(command, "cannot write %s: %s", path, strerror(errno));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) unlink(path);
    else if (errno == EEXIST) fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return tr__complain(command, "cannot write %s: %s", path, strerror(errno));
    close(fd);
    return -1;
}

int tr__write_json(const char *command, cJSON *object, const char *path)
{
    char *json = object && path ? cJSON_Print(object) : NULL, *text = NULL;
    cJSON_Delete(object);
    if (!path) return TR__EXIT_OK;
    if (!json || asprintf(&text, "%s\n", json) < 0) text = NULL;
    cJSON_free(json);
    tr_status status = text ? write_text(path, text) : tr_fail(TR_NO_MEMORY, "cannot write %s: out of memory", path);
    free(text);
    return status == TR_OK ? TR__EXIT_OK : tr__failed(command);
}
