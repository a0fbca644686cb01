/* What every result says of itself: what was measured, when, on which machine, and by which versions. */
#include "bench_result.h"

#include "options.h"
#include "system.h"

#include <trireme/trireme.h>
#include <trireme_commit.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
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

int tr__write_json(const char *command, cJSON *object, const char *path)
{
    char *text = object && path ? cJSON_Print(object) : NULL;
    cJSON_Delete(object);
    if (!path) return TR__EXIT_OK;
    FILE *f = text ? fopen(path, "w") : NULL;
    bool written = f && fprintf(f, "%s\n", text) > 0;
    if (f && fclose(f) != 0) written = false;
    if (!written) tr__complain(command, "cannot write %s: %s", path, text ? strerror(errno) : "out of memory");
    cJSON_free(text);
    return written ? TR__EXIT_OK : TR__EXIT_FAILED;
}
