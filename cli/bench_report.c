/*
 * trireme bench report: fills the tables of a page with what `--json` has written. The page is a text with blocks
 *
 *     {{table PATTERN…
 *     heading | key | format
 *     …
 *     }}
 *
 * A block becomes one table for each family of processors that has results whose "bench" matches a PATTERN (fnmatch: *
 * does not match /). A result has one row, or, if these have one of the keys, one for each object in its "results" or
 * "rows". A key is looked up in the row, then in the result; machine.cores is a key of an object. A column that no row
 * of a family has is left out there. Of two results with the same bench and family only the newer one counts. Formats
 * of numbers: none, a unit ("ms"), size, ratio, percent.
 */
#include "bench.h"

#include "bench_result.h"
#include "options.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RESULTS = 4096, MOST_COLUMNS = 24 };

typedef struct result {
    const char *file, *bench, *family;
    const cJSON *json;
    bool newer; /* than all others of its bench and family */
    bool shown;
} result;

typedef struct column {
    char *heading, *key, *format;
    bool used;  /* in the family that is written */
    bool known; /* in any */
} column;

typedef struct report {
    const char *folder, *template;
    char **files; /* their paths */
    cJSON **roots;
    int file_count;
    result *results;
    int count;
    int line; /* of the template */
    FILE *page;
} report;

static bool failed(const char *file, const char *what)
{
    tr__complain("bench report", "%s: %s", file, what);
    return false;
}

/* The whole of a file, to be freed; NULL after a message. */
static char *read_text(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t size = 0;
    ssize_t n = f ? getdelim(&text, &size, '\0', f) : -1;
    if (n < 0) failed(path, !f || ferror(f) ? strerror(errno) : "it is empty");
    if (f) fclose(f);
    if (n >= 0) return text;
    free(text);
    return NULL;
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* "machine.cores" in an object; NULL: there is none, or null. */
static const cJSON *look_up(const cJSON *object, const char *key)
{
    char part[64];
    for (const char *rest = key; object && *rest;) {
        size_t length = strcspn(rest, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, rest);
        object = cJSON_GetObjectItemCaseSensitive(object, part);
        rest += length + (rest[length] == '.');
    }
    return cJSON_IsNull(object) ? NULL : object;
}

static const char *text_of(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(look_up(object, key));
}

static bool add_result(report *r, const char *file, const cJSON *json)
{
    static const char *const wanted[] = {"bench",          "date",         "commit",
                                         "machine.family", "machine.name", "versions.trireme"};
    char what[256];
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (text_of(json, wanted[i])) continue;
        snprintf(what, sizeof what, "a result has no text \"%s\", as every one that trireme bench --json writes",
                 wanted[i]);
        return failed(file, what);
    }
    if (!cJSON_IsNumber(look_up(json, "machine.cores")))
        return failed(file, "a result has no number \"machine.cores\"");
    const char *date = text_of(json, "date");
    int year, month, day, length = 0;
    if (sscanf(date, "%4d-%2d-%2d%n", &year, &month, &day, &length) != 3 || length != 10) {
        snprintf(what, sizeof what, "the date is \"%.100s\", not one like 2026-11-25", date);
        return failed(file, what);
    }
    if (r->count == MOST_RESULTS) return failed(file, "there are more than 4,096 results");
    result *new = &r->results[r->count];
    *new = (result){.file = file,
                    .bench = text_of(json, "bench"),
                    .family = text_of(json, "machine.family"),
                    .json = json,
                    .newer = true};
    for (int i = 0; i < r->count; i++) {
        result *other = &r->results[i];
        if (strcmp(other->bench, new->bench) != 0 || strcmp(other->family, new->family) != 0) continue;
        int order = strcmp(text_of(other->json, "date"), date);
        if (order == 0) {
            snprintf(what, sizeof what, "\"%.80s\" is in %.100s, too, of the same date: keep one of them", new->bench,
                     other->file);
            return failed(file, what);
        }
        if (order < 0)
            other->newer = false;
        else
            new->newer = false;
    }
    r->count++;
    return true;
}

/* An object, or an array of them. */
static bool read_file(report *r, const char *file)
{
    char *text = read_text(file);
    const char *end = text;
    cJSON *root = text ? cJSON_ParseWithOpts(text, &end, true) : NULL;
    r->roots[r->file_count - 1] = root;
    if (text && !root) {
        int line = 1;
        for (const char *c = text; c < end; c++) line += *c == '\n';
        char what[128];
        snprintf(what, sizeof what, "line %d is no JSON, at \"%.20s\"", line,
                 strtok((char *)end, "\n") ? end : "its end");
        failed(file, what);
    }
    free(text);
    if (!root) return false;
    if (cJSON_IsObject(root)) return add_result(r, file, root);
    if (!cJSON_IsArray(root)) return failed(file, "it holds neither a result nor a list of them");
    const cJSON *one;
    cJSON_ArrayForEach(one, root) if (!add_result(r, file, one)) return false;
    return true;
}

static int is_json(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot && !strcmp(dot, ".json");
}

static bool read_folder(report *r)
{
    struct dirent **entries = NULL;
    int n = scandir(r->folder, &entries, is_json, alphasort);
    if (n < 0) return failed(r->folder, strerror(errno));
    r->files = calloc((size_t)n + 1, sizeof *r->files);
    r->roots = calloc((size_t)n + 1, sizeof *r->roots);
    r->results = calloc(MOST_RESULTS, sizeof *r->results);
    bool fine = r->files && r->roots && r->results;
    if (!fine) failed(r->folder, "out of memory");
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", r->folder, entries[i]->d_name);
        free(entries[i]);
        if (!fine) continue;
        r->files[r->file_count++] = strdup(path);
        fine = read_file(r, r->files[i]);
    }
    free(entries);
    if (fine && !r->count) return failed(r->folder, "it has no results: `--json FILE` of trireme bench writes them");
    return fine;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* 1449 is 1,449; below 1,000 three digits that say something: 459, 12.9, 2.26, 0.36. */
static void write_number(FILE *out, double value)
{
    char text[64];
    double size = fabs(value);
    snprintf(text, sizeof text, "%.*f", size == round(size) || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2, value);
    if (strchr(text, '.')) {
        char *end = text + strlen(text) - 1;
        while (*end == '0') *end-- = 0;
        if (*end == '.') *end = 0;
    }
    int digits = (int)strspn(text, "0123456789");
    for (int i = 0; text[i]; i++) {
        if (i && i < digits && (digits - i) % 3 == 0) putc(',', out);
        putc(text[i], out);
    }
}

static void write_value(FILE *out, const cJSON *value, const char *format)
{
    double number = value->valuedouble;
    if (cJSON_IsString(value)) {
        fputs(value->valuestring, out);
    } else if (cJSON_IsBool(value)) {
        fputs(cJSON_IsTrue(value) ? "yes" : "no", out);
    } else if (!strcmp(format, "size")) {
        static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
        int unit = 0;
        for (; unit < 3 && number >= 1024 && fmod(number, 1024) == 0; unit++) number /= 1024;
        write_number(out, number);
        fprintf(out, " %s", units[unit]);
    } else if (!strcmp(format, "ratio")) {
        if (number >= 1) fputs("**", out);
        write_number(out, number);
        fputs(number >= 1 ? "×**" : "×", out);
    } else if (!strcmp(format, "percent")) {
        fprintf(out, "%.0f %%", 100 * number);
    } else {
        write_number(out, number);
        if (*format) fprintf(out, " %s", format);
    }
}

static const cJSON *rows_of(const cJSON *json)
{
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(json, "results");
    if (!rows) rows = cJSON_GetObjectItemCaseSensitive(json, "rows");
    return cJSON_IsArray(rows) ? rows : NULL;
}

/* A row, or, without a page, which of its columns have a value. */
static void visit_row(FILE *page, const cJSON *json, const cJSON *row, column *columns, int count)
{
    if (page) fputs("|", page);
    for (int i = 0; i < count; i++) {
        const cJSON *value = look_up(row, columns[i].key);
        if (!value) value = look_up(json, columns[i].key);
        if (!page) columns[i].used |= value != NULL;
        if (!page || !columns[i].used) continue;
        putc(' ', page);
        if (value) write_value(page, value, columns[i].format);
        fputs(" |", page);
    }
    if (page) fputs("\n", page);
}

static void visit_rows(FILE *page, const result *one, column *columns, int count)
{
    const cJSON *rows = rows_of(one->json), *row;
    bool wanted = false;
    cJSON_ArrayForEach(row, rows) for (int i = 0; i < count; i++) wanted |= look_up(row, columns[i].key) != NULL;
    if (!wanted)
        visit_row(page, one->json, one->json, columns, count);
    else
        cJSON_ArrayForEach(row, rows) visit_row(page, one->json, row, columns, count);
}

/* Adds to a list "a; b" what it does not have yet. */
static void add_once(char *list, size_t size, const char *text)
{
    size_t length = strlen(list);
    if (!strstr(list, text)) snprintf(list + length, size - length, "%s%s", length ? "; " : "", text);
}

/* The table of a family, under a line that says where, when and with what it was measured. */
static void write_family(report *r, result *const *chosen, int chosen_count, const char *family, column *columns,
                         int count)
{
    char machines[512] = "", commits[512] = "", peers[512] = "", text[300];
    for (int i = 0; i < count; i++) columns[i].used = false;
    for (int i = 0; i < chosen_count; i++) {
        const cJSON *json = chosen[i]->json;
        if (strcmp(chosen[i]->family, family) != 0) continue;
        chosen[i]->shown = true;
        visit_rows(NULL, chosen[i], columns, count);
        snprintf(text, sizeof text, "%.200s, %.0f cores", text_of(json, "machine.name"),
                 look_up(json, "machine.cores")->valuedouble);
        add_once(machines, sizeof machines, text);
        snprintf(text, sizeof text, "%.10s at `%.60s`", text_of(json, "date"), text_of(json, "commit"));
        add_once(commits, sizeof commits, text);
        if (text_of(json, "versions.peer")) add_once(peers, sizeof peers, text_of(json, "versions.peer"));
    }
    fprintf(r->page, "**%s** (%s), %s%s%s:\n\n|", family, machines, commits, *peers ? ", beside " : "", peers);
    for (int i = 0; i < count; i++)
        if (columns[i].used) fprintf(r->page, " %s |", columns[i].heading);
    fputs("\n|", r->page);
    for (int i = 0; i < count; i++) {
        columns[i].known |= columns[i].used;
        if (columns[i].used) fputs("---|", r->page);
    }
    fputs("\n", r->page);
    for (int i = 0; i < chosen_count; i++)
        if (!strcmp(chosen[i]->family, family)) visit_rows(r->page, chosen[i], columns, count);
}

static int by_family(const void *a, const void *b)
{
    const result *const *x = a, *const *y = b;
    int order = strcmp((*x)->family, (*y)->family);
    return order ? order : *x < *y ? -1 : 1; /* as the files have them */
}

/* A message about the line of the template. */
static bool refused(const report *r, const char *what, const char *which)
{
    tr__complain("bench report", "%s: line %d: %s \"%s\"", r->template, r->line, what, which);
    return false;
}

static bool write_tables(report *r, char *patterns, column *columns, int count)
{
    static result *chosen[MOST_RESULTS];
    int chosen_count = 0;
    char all[1024];
    snprintf(all, sizeof all, "%s", patterns);
    for (char *pattern = strtok(patterns, " "); pattern; pattern = strtok(NULL, " ")) {
        int before = chosen_count;
        for (int i = 0; i < r->count && chosen_count < MOST_RESULTS; i++)
            if (r->results[i].newer && fnmatch(pattern, r->results[i].bench, FNM_PATHNAME) == 0)
                chosen[chosen_count++] = &r->results[i];
        if (chosen_count == before) return refused(r, "no result's bench matches", pattern);
    }
    if (!chosen_count) return refused(r, "a table names no pattern", all);
    qsort(chosen, (size_t)chosen_count, sizeof(result *), by_family);
    const char *family = NULL;
    for (int i = 0; i < chosen_count; i++) {
        if (family && !strcmp(family, chosen[i]->family)) continue;
        if (family) fputs("\n", r->page);
        family = chosen[i]->family;
        write_family(r, chosen, chosen_count, family, columns, count);
    }
    for (int i = 0; i < count; i++)
        if (!columns[i].known) return refused(r, "no result of this table has the key", columns[i].key);
    return true;
}

static char *trimmed(char *text)
{
    text += strspn(text, " ");
    for (size_t length = strlen(text); length && text[length - 1] == ' ';) text[--length] = 0;
    return text;
}

/* "heading | key | format" */
static bool read_column(const report *r, char *line, column *c)
{
    char *key = strchr(line, '|'), *format = key ? strchr(key + 1, '|') : NULL;
    if (!key) return refused(r, "a column is \"heading | key | format\", not", line);
    *key = 0;
    if (format) *format = 0;
    *c = (column){trimmed(line), trimmed(key + 1), format ? trimmed(format + 1) : "", false, false};
    return true;
}

/* ---- The page ---------------------------------------------------------------------------------------------------- */

static bool write_page(report *r, char *text)
{
    static const char table[] = "{{table ";
    column columns[MOST_COLUMNS];
    int count = 0;
    char *patterns = NULL, *next;
    for (char *line = text; *line; line = next) {
        next = strchr(line, '\n');
        if (!next) return refused(r, "the last line does not end:", line);
        *next++ = 0;
        r->line++;
        if (!patterns && strncmp(line, table, sizeof table - 1) != 0) {
            fprintf(r->page, "%s\n", line);
        } else if (!patterns) {
            patterns = line + sizeof table - 1;
            count = 0;
        } else if (!strcmp(line, "}}")) {
            if (!write_tables(r, patterns, columns, count)) return false;
            patterns = NULL;
        } else if (count == MOST_COLUMNS) {
            return refused(r, "a table has no room for the column", line);
        } else if (!read_column(r, line, &columns[count++])) {
            return false;
        }
    }
    if (patterns) return refused(r, "no }} ends the table", patterns);
    for (int i = 0; i < r->count; i++)
        if (r->results[i].newer && !r->results[i].shown) {
            char what[300];
            snprintf(what, sizeof what, "no table of %.100s shows \"%.100s\"", r->template, r->results[i].bench);
            return failed(r->results[i].file, what);
        }
    return true;
}

int tr__bench_report(int argc, char **argv)
{
    char usual[PATH_MAX], *page = NULL;
    size_t size = 0;
    report r = {0};
    const tr__option options[] = {
        {"template", 0, "FILE", "the page with its empty tables (FOLDER/page.md.in)", TR__TEXT(&r.template)},
        {0},
    };
    const tr__syntax syntax = {"bench report", "FOLDER",
                               "Prints the page of results: the tables of the template, filled from all JSON files of "
                               "the folder, of each bench\n"
                               "and family of processors the newest.",
                               options, .operands = {1, 1}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code >= 0) return code;
    r.folder = argv[0];
    snprintf(usual, sizeof usual, "%s/page.md.in", r.folder);
    if (!r.template) r.template = usual;
    r.page = open_memstream(&page, &size);
    char *text = r.page ? read_text(r.template) : NULL;
    bool fine = text && read_folder(&r) && write_page(&r, text);
    if (r.page && fclose(r.page) != 0) fine = failed(r.template, "out of memory");
    if (fine) fwrite(page, 1, size, stdout);
    for (int i = 0; i < r.file_count; i++) {
        free(r.files[i]);
        cJSON_Delete(r.roots[i]);
    }
    free(r.files);
    free(r.roots);
    free(r.results);
    free(text);
    free(page);
    return fine ? tr__printed("bench report") : TR__EXIT_FAILED;
}
