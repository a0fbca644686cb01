/* The JSON objects that `trireme bench` and `trireme train` write, and what each of them begins with. */
#ifndef TRIREME_CLI_BENCH_RESULT_H
#define TRIREME_CLI_BENCH_RESULT_H

#include <cjson/cJSON.h>

/*
 * A new result: {bench, date, commit, machine {family, name, cores}, versions {trireme, peer}}. bench, the format's
 * text, names what was measured and how, from the general to the special: "model/f32/1x1/gpt-mini",
 * "all-reduce/2/gloo". Of results with the same bench and family the newest one counts. peer_version: "PyTorch 2.15.0",
 * or NULL.
 */
cJSON *tr__result_new(const char *peer_version, const char *bench, ...) __attribute__((format(printf, 2, 3)));

typedef struct tr__number {
    const char *key;
    double value;
} tr__number;
/* Numbers of an object, {"key", value}, …; each is null where it is not finite. */
#define TR__ADD_NUMBERS(object, ...) tr__add_numbers(object, (const tr__number[]){__VA_ARGS__, {NULL, 0}})
void tr__add_numbers(cJSON *object, const tr__number *numbers);

/* Hours later would be late to learn that results cannot be written there. Until they are there is no file, or that of before;
 * where a link leads to none, an empty one. -1 when all is well, or path is NULL; else the exit code, after a message. */
int tr__check_writable(const char *command, const char *path);

/* Writes a JSON object, which may be NULL when memory ran out, and deletes it; path NULL: only that. A file is replaced whole or
 * not at all. Returns the exit code, after a message where it is not 0. */
int tr__write_json(const char *command, cJSON *object, const char *path);

#endif
