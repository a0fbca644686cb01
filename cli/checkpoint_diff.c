/* trireme checkpoint diff: how the tensors and metadata of two checkpoints differ. */
#include "checkpoint.h"

#include "bench_result.h"
#include "options.h"
#include "terminal.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIFF "checkpoint diff"

typedef struct diff {
    const char *paths[2];
    tr_tensor_list *models[2], *states[2]; /* states: NULL where one of the two is a file alone */
    int64_t tensors,
        different; /* that both have; and of these, or of those that one has, those that are not the same */
    int metadata;  /* keys with different values */
    double most;   /* the largest absolute difference of two numbers */
    cJSON *only[2], *changed, *keys; /* what --json gets; NULL without it */
} diff;

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* How the values of two tensors of one shape differ. */
typedef struct distance {
    int64_t different;         /* values whose bits do */
    int64_t first;             /* the first of them */
    int64_t nans;              /* values of which one is NaN and the other is not */
    double absolute, relative; /* the largest |a - b|, and |a - b| / max(|a|, |b|), of the others */
} distance;

static void add_numbers(distance *d, const double *a, const double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (a[i] == b[i]) continue;
        if (isnan(a[i]) || isnan(b[i])) {
            d->nans += !isnan(a[i]) || !isnan(b[i]);
            continue;
        }
        double absolute = fabs(a[i] - b[i]), relative = absolute / fmax(fabs(a[i]), fabs(b[i]));
        if (absolute > d->absolute) d->absolute = absolute;
        if (relative > d->relative || isnan(relative))
            d->relative = isnan(relative) ? 1 : relative; /* infinity / infinity */
    }
}

static void add_bits(distance *d, tr_tensor *a, tr_tensor *b)
{
    size_t size = tr_dtype_size(tr_dtype_of(a));
    const char *x = tr_data(a), *y = tr_data(b);
    for (int64_t i = 0; i < tr_numel(a); i++) {
        if (memcmp(x + (size_t)i * size, y + (size_t)i * size, size) == 0) continue;
        if (d->different++ == 0) d->first = i;
    }
}

/* In pieces: as f64 a model would take twice its memory again. */
static tr_status measure(tr_tensor *a, tr_tensor *b, distance *d)
{
    enum { PIECE = 1 << 18 };
    int64_t count = tr_numel(a);
    *d = (distance){.first = -1};
    if (tr_dtype_of(a) == tr_dtype_of(b)) add_bits(d, a, b);
    if (d->different == 0 && tr_dtype_of(a) == tr_dtype_of(b)) return TR_OK;
    for (int64_t at = 0; at < count; at += PIECE) {
        TR_SCOPE;
        TR_NO_GRAD;
        int64_t end = at + PIECE < count ? at + PIECE : count;
        tr_tensor *x = tr_cast(tr_slice(tr_reshape(a, TR_SHAPE(count)), 0, at, end), TR_F64);
        tr_tensor *y = tr_cast(tr_slice(tr_reshape(b, TR_SHAPE(count)), 0, at, end), TR_F64);
        if (tr_status_of(x) != TR_OK) return tr_status_of(x);
        if (tr_status_of(y) != TR_OK) return tr_status_of(y);
        add_numbers(d, tr_data(x), tr_data(y), end - at);
    }
    return TR_OK;
}

static bool same_shape(const tr_tensor *a, const tr_tensor *b)
{
    if (tr_ndim(a) != tr_ndim(b)) return false;
    for (int i = 0; i < tr_ndim(a); i++)
        if (tr_size(a, i) != tr_size(b, i)) return false;
    return true;
}

static char *kind_text(const tr_tensor *t, char text[200])
{
    snprintf(text, 200, "%s %s", tr_dtype_name(tr_dtype_of(t)), tr_shape_text(tr_shape_of(t), (char[160]){0}));
    return text;
}

static cJSON *add_entry(cJSON *array, const char *file, const char *name)
{
    cJSON *o = array ? cJSON_CreateObject() : NULL;
    if (!o) return NULL;
    cJSON_AddStringToObject(o, "file", file);
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddItemToArray(array, o);
    return o;
}

/* A tensor that both have. */
static tr_status compare(diff *d, const char *file, const char *name, tr_tensor *a, tr_tensor *b)
{
    char kinds[2][200];
    distance far = {0};
    d->tensors++;
    bool alike = same_shape(a, b), same_kind = alike && tr_dtype_of(a) == tr_dtype_of(b);
    if (alike) TRY(measure(a, b, &far));
    if (same_kind && far.different == 0) return TR_OK;
    d->different++;
    if (far.absolute > d->most) d->most = far.absolute;
    if (!same_kind) tr__line("  %s: %s | %s", name, kind_text(a, kinds[0]), kind_text(b, kinds[1]));
    if (same_kind)
        tr__line("  %s: %" PRId64 " of %" PRId64 " values differ, the first at index %" PRId64
                 "; by up to %.3g, relative %.3g",
                 name, far.different, tr_numel(a), far.first, far.absolute, far.relative);
    else if (alike)
        tr__line("    their values differ by up to %.3g, relative %.3g", far.absolute, far.relative);
    if (far.nans) tr__line("    %" PRId64 " values are NaN on one side alone", far.nans);
    cJSON *o = add_entry(d->changed, file, name);
    if (!o) return TR_OK;
    cJSON_AddStringToObject(o, "a", kind_text(a, kinds[0]));
    cJSON_AddStringToObject(o, "b", kind_text(b, kinds[1]));
    if (!alike) return TR_OK;
    if (same_kind) cJSON_AddNumberToObject(o, "different", (double)far.different);
    if (same_kind) cJSON_AddNumberToObject(o, "first", (double)far.first);
    TR__ADD_NUMBERS(o, {"nan_on_one_side", (double)far.nans}, {"max_absolute", far.absolute}, {"max_relative", far.relative});
    return TR_OK;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static void one_side(diff *d, const char *file, const tr_tensor_list *const lists[2], int side)
{
    for (int i = 0; i < tr_list_count(lists[side]); i++) {
        const char *name = tr_list_name(lists[side], i);
        char kind[200];
        if (tr_list_find(lists[1 - side], name)) continue;
        d->different++;
        tr__line("  %s: only in %s, %s", name, d->paths[side], kind_text(tr_list_at(lists[side], i), kind));
        cJSON *o = add_entry(d->only[side], file, name);
        if (o) cJSON_AddStringToObject(o, "is", kind);
    }
}

/* Of metadata, what follows from all the rest does not count, nor what a clock said. */
static void compare_key(diff *d, const char *file, const char *key, const char *a, const char *b)
{
    if (strcmp(key, "trireme.save") == 0 || strcmp(key, "seconds") == 0) return;
    if (a && b && strcmp(a, b) == 0) return;
    d->metadata++;
    tr__line("  %s: %s | %s", key, a ? a : "(none)", b ? b : "(none)");
    cJSON *o = add_entry(d->keys, file, key);
    if (o && a) cJSON_AddStringToObject(o, "a", a);
    if (o && b) cJSON_AddStringToObject(o, "b", b);
}

static tr_status compare_lists(diff *d, const char *file, const tr_tensor_list *a, const tr_tensor_list *b)
{
    const tr_tensor_list *const lists[2] = {a, b};
    tr__line("%s", file);
    for (int i = 0; i < tr_list_metadata_count(a); i++) {
        const char *key = tr_list_metadata_key(a, i);
        compare_key(d, file, key, tr_list_metadata(a, key), tr_list_metadata(b, key));
    }
    for (int i = 0; i < tr_list_metadata_count(b); i++) {
        const char *key = tr_list_metadata_key(b, i);
        if (!tr_list_metadata(a, key)) compare_key(d, file, key, NULL, tr_list_metadata(b, key));
    }
    one_side(d, file, lists, 0);
    one_side(d, file, lists, 1);
    for (int i = 0; i < tr_list_count(a); i++) {
        const char *name = tr_list_name(a, i);
        tr_tensor *other = tr_list_find(b, name);
        if (other) TRY(compare(d, file, name, tr_list_at(a, i), other));
    }
    return TR_OK;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* A file alone is held against the manifest beside it, where there is one. */
static tr_status load(const char *path, tr_tensor_list **model, tr_tensor_list **state)
{
    char found[PATH_MAX];
    int64_t step;
    *state = NULL;
    switch (tr__path_kind_of(path)) {
    case TR__PATH_FOLDER:
        TRY(tr_checkpoint_find(path, found, &step));
        return tr_checkpoint_load(found, model, state);
    case TR__PATH_CHECKPOINT:
        return tr_checkpoint_load(path, model, state);
    case TR__PATH_FILE:
        TRY(tr_checkpoint_verify(path));
        *model = tr_safetensors_load(path);
        return tr_status_of(*model);
    case TR__PATH_NOTHING:
        break;
    }
    return tr_fail(TR_NOT_FOUND, "%s: there is no checkpoint, no folder of them, and no safetensors file", path);
}

static tr_status run(diff *d)
{
    for (int i = 0; i < 2; i++) TRY(load(d->paths[i], &d->models[i], &d->states[i]));
    TRY(compare_lists(d, "model", d->models[0], d->models[1]));
    if (d->states[0] && d->states[1]) TRY(compare_lists(d, "state", d->states[0], d->states[1]));
    return TR_OK;
}

static bool conclude(const diff *d)
{
    bool same = d->different == 0 && d->metadata == 0;
    if (same)
        tr__line("the same: %" PRId64 " tensors, bit for bit, and their metadata", d->tensors);
    else if (d->different == 0)
        tr__line("different: %d metadata; all %" PRId64 " tensors are the same, bit for bit", d->metadata, d->tensors);
    else
        tr__line("different: %" PRId64 " tensors, by up to %.3g, and %d metadata", d->different, d->most, d->metadata);
    return same;
}

static int write_json(const diff *d, cJSON *o, bool same, const char *path)
{
    cJSON_AddStringToObject(o, "a", d->paths[0]);
    cJSON_AddStringToObject(o, "b", d->paths[1]);
    cJSON_AddBoolToObject(o, "same", same);
    TR__ADD_NUMBERS(o, {"tensors", (double)d->tensors}, {"different", (double)d->different}, {"max_absolute", d->most});
    return tr__write_json(DIFF, o, path);
}

int tr__checkpoint_diff(int argc, char **argv)
{
    TR_SCOPE;
    const char *json = NULL;
    const tr__option options[] = {
        {"json", 0, "FILE", "write the differences as a JSON object", TR__TEXT(&json)},
        {0},
    };
    const tr__syntax syntax = {
        DIFF, "A B",
        "Compares the tensors of two checkpoints, bit for bit, and their metadata: what only one has, dtypes and "
        "shapes\n"
        "that differ, and how far values are apart at most. The history, which holds times, is left out. A and B are\n"
        "checkpoints, folders of checkpoints (of which the newest counts), or safetensors files; where one is a file,\n"
        "models alone are compared. Ends with 1 when they are not the same.",
        options, .operands = {2, 2}};
    int code = tr__parse(&syntax, &argc, argv);
    if (code < 0) code = tr__check_writable(DIFF, json);
    if (code >= 0) return code;
    tr__print_warnings(DIFF);
    diff d = {.paths = {argv[0], argv[1]}};
    cJSON *object = json ? cJSON_CreateObject() : NULL;
    if (object) {
        d.only[0] = cJSON_AddArrayToObject(object, "only_a");
        d.only[1] = cJSON_AddArrayToObject(object, "only_b");
        d.changed = cJSON_AddArrayToObject(object, "changed");
        d.keys = cJSON_AddArrayToObject(object, "metadata");
    }
    if (run(&d) != TR_OK) {
        cJSON_Delete(object);
        return tr__failed(DIFF);
    }
    bool same = conclude(&d);
    code = write_json(&d, object, same, json);
    if (code == TR__EXIT_OK) code = tr__printed(DIFF);
    return same ? code : TR__EXIT_FAILED;
}
