/* trireme checkpoint: what a checkpoint holds, whether it is whole, and how two of them differ. */
#include "checkpoint.h"

#include "bench_result.h"
#include "command.h"
#include "options.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VERIFY "checkpoint verify"
#define SHOW "checkpoint show"

void tr__line(const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    puts(tr_printable(text));
    free(text);
}

char *tr__bytes_text(double bytes, char text[16])
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int unit = 0;
    while (bytes >= 1000 && unit < 4) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, 16, unit && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

/* ---- Paths ------------------------------------------------------------------------------------------------------- */

/* With a dot: one that a new one was to replace. */
static bool is_checkpoint_name(const char *name)
{
    static const char prefix[] = "checkpoint-";
    name += *name == '.';
    const char *digits = name + sizeof prefix - 1;
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && *digits && strspn(digits, "0123456789") == strlen(digits);
}

tr__path_kind tr__path_kind_of(const char *path)
{
    struct stat s;
    char found[PATH_MAX];
    int64_t step;
    if (stat(path, &s) < 0) return TR__PATH_NOTHING;
    if (!S_ISDIR(s.st_mode)) return TR__PATH_FILE;
    if (tr_checkpoint_find(path, found, &step) == TR_OK)
        return strcmp(found, path) == 0 ? TR__PATH_CHECKPOINT : TR__PATH_FOLDER;
    /* One whose model is gone still has a manifest, or at least its name. */
    const char *slash = strrchr(path, '/');
    if (is_checkpoint_name(slash ? slash + 1 : path)) return TR__PATH_CHECKPOINT;
    return snprintf(found, sizeof found, "%s/manifest.json", path) < PATH_MAX && stat(found, &s) == 0
               ? TR__PATH_CHECKPOINT
               : TR__PATH_NOTHING;
}

static int is_checkpoint(const struct dirent *entry)
{
    return is_checkpoint_name(entry->d_name);
}

/* ---- What was found ---------------------------------------------------------------------------------------------- */

typedef struct survey {
    const char *path;
    tr_status status;
    char why[2048]; /* of a failure that is no damage */
    tr_checkpoint_report report;
    tr_checkpoint_part *parts; /* whose texts are the survey's */
    int count, capacity;
    bool lost; /* a part, for want of memory */
} survey;

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static void note(const tr_checkpoint_part *from, void *user)
{
    survey *s = user;
    if (s->count == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 64;
        tr_checkpoint_part *grown = reallocarray(s->parts, (size_t)capacity, sizeof *grown);
        if (!grown) {
            s->lost = true;
            return;
        }
        s->parts = grown;
        s->capacity = capacity;
    }
    tr_checkpoint_part *p = &s->parts[s->count++];
    *p = *from;
    p->file = copy_of(from->file);
    p->tensor = copy_of(from->tensor);
    p->damage = copy_of(from->damage);
    s->lost |= !p->file || (from->tensor && !p->tensor) || (from->damage && !p->damage);
}

static void look(survey *s, const char *path)
{
    *s = (survey){.path = path};
    if (tr__path_kind_of(path) == TR__PATH_NOTHING) {
        s->status = TR_NOT_FOUND;
        snprintf(s->why, sizeof s->why, "%s: there is no checkpoint, no folder of them, and no safetensors file", path);
        return;
    }
    s->status = tr_checkpoint_verify(path, .report = &s->report, .on_part = note, .user = s);
    if (s->lost) s->status = tr_fail(TR_NO_MEMORY, "out of memory");
    if (s->status != TR_OK && s->status != TR_FORMAT) snprintf(s->why, sizeof s->why, "%s", tr_error_message());
}

static void forget(survey *s)
{
    for (int i = 0; i < s->count; i++) {
        free((char *)s->parts[i].file);
        free((char *)s->parts[i].tensor);
        free((char *)s->parts[i].damage);
    }
    free(s->parts);
}

static bool is_fine(const survey *s)
{
    return s->status == TR_OK && s->report.not_finite == 0;
}

/* "whole: …", and what that is known from. */
static void print_verdict(const survey *s, const char *before)
{
    const tr_checkpoint_report *r = &s->report;
    char size[16];
    tr__bytes_text((double)r->bytes, size);
    if (r->damaged)
        tr__line("%sDAMAGED in %d part%s", before, r->damaged, r->damaged == 1 ? "" : "s");
    else if (r->has_manifest)
        tr__line("%swhole: %d file%s by SHA-256, %d tensors by CRC-32C, %s", before, r->files, r->files == 1 ? "" : "s",
                 r->tensors, size);
    else
        tr__line("%sreadable, not verified: no manifest says what its %d tensors, %s, were to be", before, r->tensors,
                 size);
}

static void print_problems(const survey *s)
{
    for (int i = 0; i < s->count; i++) {
        const tr_checkpoint_part *p = &s->parts[i];
        if (p->damage) tr__line("  %s", p->damage);
        if (p->nans + p->infinities > 0)
            tr__line("  %s: tensor \"%s\" has %" PRId64 " NaN and %" PRId64
                     " infinite values, the first at index %" PRId64,
                     p->file, p->tensor, p->nans, p->infinities, p->first_not_finite);
    }
}

/* ---- As JSON ----------------------------------------------------------------------------------------------------- */

static cJSON *part_json(const tr_checkpoint_part *p)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "file", p->file);
    if (p->tensor) {
        cJSON_AddStringToObject(o, "tensor", p->tensor);
        cJSON_AddStringToObject(o, "dtype", tr_dtype_name(p->dtype));
        cJSON *shape = cJSON_AddArrayToObject(o, "shape");
        for (int d = 0; d < p->shape.ndim; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)p->shape.dim[d]));
        TR__ADD_NUMBERS(o, {"nans", (double)p->nans}, {"infinities", (double)p->infinities});
        if (p->first_not_finite >= 0) cJSON_AddNumberToObject(o, "first_not_finite", (double)p->first_not_finite);
    }
    TR__ADD_NUMBERS(o, {"begin", (double)p->begin}, {"end", (double)p->end});
    if (p->damage) cJSON_AddStringToObject(o, "damage", p->damage);
    return o;
}

/* all: every part, else those with something wrong. */
static cJSON *survey_json(const survey *s, bool all)
{
    const tr_checkpoint_report *r = &s->report;
    cJSON *o = cJSON_CreateObject(), *parts;
    cJSON_AddStringToObject(o, "path", s->path);
    cJSON_AddBoolToObject(o, "fine", is_fine(s));
    if (*s->why) cJSON_AddStringToObject(o, "failure", s->why);
    cJSON_AddBoolToObject(o, "has_manifest", r->has_manifest);
    if (r->has_manifest) {
        TR__ADD_NUMBERS(o, {"step", (double)r->step}, {"loss", r->loss});
        cJSON_AddStringToObject(o, "save", r->save);
        cJSON_AddStringToObject(o, "version", r->version);
        cJSON_AddStringToObject(o, "settings", r->settings);
    }
    TR__ADD_NUMBERS(o, {"files", r->files}, {"tensors", r->tensors}, {"bytes", (double)r->bytes}, {"damaged", r->damaged},
        {"not_finite", r->not_finite});
    parts = cJSON_AddArrayToObject(o, all ? "parts" : "problems");
    for (int i = 0; i < s->count; i++) {
        const tr_checkpoint_part *p = &s->parts[i];
        if (all || p->damage || p->nans + p->infinities > 0) cJSON_AddItemToArray(parts, part_json(p));
    }
    if (!all) return o;
    cJSON *metadata = cJSON_AddObjectToObject(o, "metadata");
    for (int i = 0; i < tr_list_metadata_count(r->about); i++) {
        const char *key = tr_list_metadata_key(r->about, i);
        cJSON_AddStringToObject(metadata, key, tr_list_metadata(r->about, key));
    }
    return o;
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */

static bool verify_one(const char *path, cJSON *all)
{
    TR_SCOPE;
    survey s;
    look(&s, path);
    char before[PATH_MAX + 8];
    snprintf(before, sizeof before, "%s: ", path);
    if (*s.why) {
        tr__complain(VERIFY, "%s", s.why);
    } else {
        print_verdict(&s, before);
        print_problems(&s);
    }
    if (all) cJSON_AddItemToArray(all, survey_json(&s, false));
    bool fine = is_fine(&s);
    forget(&s);
    return fine;
}

static int by_step(const struct dirent **a, const struct dirent **b)
{
    const char *first = (*a)->d_name, *second = (*b)->d_name;
    return strverscmp(first + (*first == '.'), second + (*second == '.'));
}

/* All checkpoints in a folder, by rising step; of a step's two the one that replaced the other. */
static bool verify_folder(const char *folder, cJSON *all)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_checkpoint, by_step);
    bool fine = count > 0;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        char path[PATH_MAX];
        bool replaced = *name == '.' && snprintf(path, sizeof path, "%s/%s", folder, name + 1) < PATH_MAX &&
            access(path, F_OK) == 0;
        if (!replaced && snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX) fine &= verify_one(path, all);
    }
    for (int i = 0; i < count; i++) free(entries[i]);
    if (count >= 0) free(entries);
    return fine;
}

static int verify(int argc, char **argv)
{
    const char *json = NULL;
    const tr__option options[] = {
        {"json", 0, "FILE", "write what was found as a JSON object", TR__TEXT(&json)},
        {0},
    };
    const tr__syntax syntax = {
        VERIFY, "PATH…",
        "Reads checkpoints whole and holds them against their manifests: the header and each tensor by CRC-32C, each\n"
        "file by SHA-256. Names what is damaged, and tensors with NaN or infinite values. PATH is a checkpoint,\n"
        "a folder of checkpoints (all are read), or a safetensors file. Ends with 1 when one of them is not fine.",
        options, .operands = {1, INT_MAX}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code < 0) code = tr__check_writable(VERIFY, json);
    if (code >= 0) return code;
    bool fine = true;
    cJSON *object = json ? cJSON_CreateObject() : NULL,
          *all = object ? cJSON_AddArrayToObject(object, "checkpoints") : NULL;
    for (int i = 0; i < argc; i++) {
        if (tr__path_kind_of(argv[i]) == TR__PATH_FOLDER)
            fine &= verify_folder(argv[i], all);
        else
            fine &= verify_one(argv[i], all);
    }
    if (object) cJSON_AddBoolToObject(object, "fine", fine);
    code = tr__write_json(VERIFY, object, json);
    if (code == TR__EXIT_OK) code = tr__printed(VERIFY);
    return fine ? code : TR__EXIT_FAILED;
}

/* ---- show -------------------------------------------------------------------------------------------------------- */

static void print_facts(const survey *s)
{
    const tr_checkpoint_report *r = &s->report;
    tr__line("%s", s->path);
    if (r->has_manifest) {
        tr__line("  step      %" PRId64, r->step);
        if (isfinite(r->loss)) tr__line("  loss      %.9g, validation", r->loss);
        tr__line("  saved by  Trireme %s", r->version);
        tr__line("  save      %s", r->save);
        tr__line("  settings  %s", r->settings);
    }
    print_verdict(s, "  verified  ");
    print_problems(s);
    int count = tr_list_metadata_count(r->about);
    if (count) tr__line("\nmetadata");
    for (int i = 0; i < count; i++) {
        const char *key = tr_list_metadata_key(r->about, i);
        tr__line("  %-24s  %s", key, tr_list_metadata(r->about, key));
    }
}

static int width_of(const survey *s)
{
    size_t width = 0;
    for (int i = 0; i < s->count; i++)
        if (s->parts[i].tensor && strlen(s->parts[i].tensor) > width) width = strlen(s->parts[i].tensor);
    return width < 60 ? (int)width : 60;
}

/* A file comes behind its tensors, and is printed before them. */
static void print_files(const survey *s)
{
    int width = width_of(s), begin = 0;
    for (int i = 0; i < s->count; i++) {
        const tr_checkpoint_part *file = &s->parts[i];
        if (file->tensor) continue;
        tr__line("\n%s, %d tensors, %" PRId64 " bytes", file->file, i - begin, file->end);
        for (; begin < i; begin++) {
            const tr_checkpoint_part *p = &s->parts[begin];
            tr__line("  %-*s  %-4s  %s", width, p->tensor, tr_dtype_name(p->dtype),
                     tr_shape_text(p->shape, (char[160]){0}));
        }
        begin = i + 1;
    }
}

static int show(int argc, char **argv)
{
    TR_SCOPE;
    const char *json = NULL;
    const tr__option options[] = {
        {"json", 0, "FILE", "write all of it as a JSON object", TR__TEXT(&json)},
        {0},
    };
    const tr__syntax syntax = {
        SHOW, "PATH",
        "Verifies a checkpoint and prints what it is: step, loss, version, the save's identifier, settings, metadata,\n"
        "files, and tensors with dtypes and shapes. PATH is a checkpoint, a folder of checkpoints (the newest is "
        "shown),\n"
        "or a safetensors file. Ends with 1 when it is not fine.",
        options, .operands = {1, 1}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code < 0) code = tr__check_writable(SHOW, json);
    if (code >= 0) return code;
    char path[PATH_MAX];
    int64_t step;
    const char *shown = argv[0];
    if (tr__path_kind_of(shown) == TR__PATH_FOLDER && tr_checkpoint_find(shown, path, &step) == TR_OK) shown = path;
    survey s;
    look(&s, shown);
    bool fine = is_fine(&s);
    if (*s.why) {
        tr__complain(SHOW, "%s", s.why);
    } else {
        print_facts(&s);
        print_files(&s);
    }
    code = tr__write_json(SHOW, survey_json(&s, true), json);
    if (code == TR__EXIT_OK) code = tr__printed(SHOW);
    forget(&s);
    return fine ? code : TR__EXIT_FAILED;
}

int tr__cli_checkpoint(int argc, char **argv)
{
    static const tr__subcommand commands[] = {
        {"verify", verify, "read checkpoints whole, and name what is damaged or not finite"},
        {"show", show, "print what a checkpoint is and holds"},
        {"diff", tr__checkpoint_diff, "say how two of them differ"},
        {0},
    };
    return tr__run_subcommand("checkpoint", "Reads what trainings have saved.", commands, argc, argv);
}
