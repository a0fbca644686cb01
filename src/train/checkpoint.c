/*
 * Checkpoints: FOLDER/checkpoint-STEP/{model,state,history}.safetensors, the last where the training has metrics, and
 * manifest.json, which says what the others are to contain.
 *
 * All files must be of the same step, so they appear together: they are written into FOLDER/.checkpoint.tmp, which one
 * rename makes the checkpoint. There is no pointer to the newest one that could disagree with the folders: the newest
 * is the one with the highest step. One of the same step changes places with the new one, or, where the file system cannot
 * exchange, waits as FOLDER/.checkpoint-STEP, which counts until checkpoint-STEP is there.
 */
#include "base/atomic_file.h"
#include "base/folder.h"
#include "base/given.h"
#include "base/log.h"
#include "base/memory.h"
#include "train/checkpoint.h"
#include "train/history.h"
#include "train/manifest.h"

#include <trireme/train.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEEP = 2, NAME = 64 /* bytes of a checkpoint's name */ };

static const char temporary[] = ".checkpoint.tmp";
static const char discarded[] = ".checkpoint.old";
static const char prefix[] = "checkpoint-";
const char *const tr__checkpoint_files[TR__CHECKPOINT_FILES] = {"model.safetensors", "state.safetensors",
    "history.safetensors"};

/* The step in the name of a checkpoint, or -1. Only names that this file writes count: no signs, no leading zeros. */
static int64_t step_of(const char *name)
{
    name += *name == '.'; /* one that a new one was to replace */
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
    const char *digits = name + sizeof prefix - 1;
    size_t length = strlen(digits);
    if (!length || length > 18 || strspn(digits, "0123456789") != length || (*digits == '0' && length > 1)) return -1;
    return strtoll(digits, NULL, 10);
}

static void put_name(char name[NAME], int64_t step)
{
    snprintf(name, NAME, "%s%" PRId64, prefix, step);
}

/* Where a step's checkpoint is. */
static tr_status path_of(char path[PATH_MAX], const char *folder, int64_t step)
{
    char aside[NAME + 1] = ".";
    put_name(aside + 1, step);
    TR__TRY(tr__path_join(path, folder, aside));
    bool replaced = access(path, F_OK) == 0;
    TR__TRY(tr__path_join(path, folder, aside + 1));
    return replaced && access(path, F_OK) < 0 ? tr__path_join(path, folder, aside) : TR_OK;
}

/* ---- Removing ---------------------------------------------------------------------------------------------------- */

/* Removes a file, a link (not what it leads to), or a folder with all that is in it. */
static tr_status remove_tree(int parent, const char *name, const char *folder)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return TR_OK;
    bool is_a_folder = errno == EISDIR || errno == EPERM; /* Linux says the one, POSIX the other */
    int fd = is_a_folder ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        tr_status status = tr__fail_errno(TR_IO, errno, "cannot remove %s/%s", folder, name);
        if (fd >= 0) close(fd);
        return status;
    }
    tr_status status = TR_OK;
    struct dirent *entry;
    while (status == TR_OK && (entry = readdir(d)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = remove_tree(fd, entry->d_name, folder);
    closedir(d);
    if (status != TR_OK || unlinkat(parent, name, AT_REMOVEDIR) == 0) return status;
    return tr__fail_errno(TR_IO, errno, "cannot remove %s/%s", folder, name);
}

/* Removes a checkpoint in one step, by a rename: a half-removed one must not look like a checkpoint. */
static tr_status remove_checkpoint(int parent, const char *name, const char *folder)
{
    TR__TRY(remove_tree(parent, discarded, folder));
    if (renameat(parent, name, parent, discarded) < 0 && errno != ENOENT)
        return tr__fail_errno(TR_IO, errno, "cannot remove %s/%s", folder, name);
    return remove_tree(parent, discarded, folder);
}

static int falling(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The steps of the checkpoints in a folder, falling; to be freed also after a failure. parent: it, open; -1: by its name. */
static tr_status list_steps(int parent, const char *folder, int64_t **steps, int *count)
{
    *steps = NULL;
    *count = 0;
    int fd = openat(parent < 0 ? AT_FDCWD : parent, parent < 0 ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        tr_status status = tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "cannot read %s", folder);
        if (fd >= 0) close(fd);
        return status;
    }
    struct dirent *entry;
    struct stat s;
    size_t room = 0;
    bool whole = true;
    while (whole && (entry = readdir(d))) {
        int64_t step = step_of(entry->d_name);
        if (step < 0 || fstatat(dirfd(d), entry->d_name, &s, 0) < 0 || !S_ISDIR(s.st_mode)) continue;
        whole = tr__grow(steps, (size_t)*count, &room, sizeof **steps);
        if (whole) (*steps)[(*count)++] = step;
    }
    closedir(d);
    if (!whole) return tr__fail(TR_NO_MEMORY, "out of memory");
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, falling);
    int found = *count;
    for (int i = *count = 0; i < found; i++) /* one that was to be replaced is of the same step */
        if (!*count || (*steps)[*count - 1] != (*steps)[i]) (*steps)[(*count)++] = (*steps)[i];
    return TR_OK;
}

/* Of the checkpoints, the step of the one with the least validation loss, *least; -1 when none says one. */
static int64_t best_step(const char *folder, const int64_t *steps, int count, double *least)
{
    int64_t best = -1;
    *least = INFINITY;
    for (int i = 0; i < count; i++) {
        char path[PATH_MAX];
        tr__manifest m;
        if (path_of(path, folder, steps[i]) != TR_OK) return -1;
        if (tr__manifest_read(&m, path) == TR_OK && m.loss < *least) {
            *least = m.loss;
            best = steps[i];
        }
        tr__manifest_free(&m);
    }
    return best;
}

/* Removes every checkpoint but the newest ones, and the best one if that is to be kept. */
static tr_status prune(int parent, const tr_checkpoint_save_options *o)
{
    int keep = TR__OR(o, keep, KEEP), count;
    int64_t *steps;
    tr_status status = list_steps(parent, o->folder, &steps, &count);
    double least;
    int64_t best = o->keep_best && status == TR_OK ? best_step(o->folder, steps, count, &least) : -1;
    for (int i = keep; i < count && status == TR_OK; i++) {
        if (steps[i] == best) continue;
        char name[NAME];
        put_name(name, steps[i]);
        status = remove_checkpoint(parent, name, o->folder);
    }
    free(steps);
    return status;
}

/* Leftovers that cannot be removed only take space: no reason to end a training. */
static void clear_away(tr_status status)
{
    if (status != TR_OK) tr__log(TR_LOG_WARN, "an old checkpoint stays: %s", tr_error_message());
}

void tr__checkpoint_clear_away(int parent, const char *folder)
{
    clear_away(remove_tree(parent, temporary, folder));
    clear_away(remove_tree(parent, discarded, folder));
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

/* Is the checkpoint whole? */
static tr_status is_whole(const char *folder, int64_t step, bool *whole)
{
    TR_SCOPE;
    tr_tensor_list *model, *state, *history;
    char path[PATH_MAX];
    TR__TRY(path_of(path, folder, step));
    tr_status status = tr__checkpoint_load(path, &model, &state, &history);
    *whole = status == TR_OK;
    return status == TR_FORMAT ? TR_OK : status;
}

/* Renames a checkpoint so that it no longer counts as one. */
static tr_status set_aside(int parent, const char *folder, int64_t step)
{
    char name[NAME], aside[96];
    put_name(name, step);
    snprintf(aside, sizeof aside, "damaged-%s", name);
    TR__TRY(remove_tree(parent, aside, folder)); /* an earlier one of the same step */
    if (renameat(parent, name, parent, aside) < 0)
        return tr__fail_errno(TR_IO, errno, "cannot rename %s/%s to %s", folder, name, aside);
    tr__log(TR_LOG_WARN, "%s/%s is set aside as %s", folder, name, aside);
    return TR_OK;
}

/* A save that was to replace a checkpoint ended before the new one was in its place: it is back; or behind that: it goes. */
static tr_status put_back(int parent, const char *folder, int64_t step)
{
    char aside[NAME + 1] = ".";
    put_name(aside + 1, step);
    if (renameat(parent, aside, parent, aside + 1) == 0 || errno == ENOENT) return TR_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return tr__fail_errno(TR_IO, errno, "cannot rename %s/%s to %s", folder, aside, aside + 1);
    clear_away(remove_checkpoint(parent, aside, folder));
    return TR_OK;
}

/* steps: all of the folder's, from the newest on, of which the first `later` are of a later step. */
static tr_status make_room(int parent, const char *folder, int64_t step, const int64_t *steps, int count, int later)
{
    bool whole = false, passed_over = false;
    for (int i = 0; i < later && !whole; i++) TR__TRY(is_whole(folder, steps[i], &whole));
    for (int i = later; i < count && !whole && !passed_over; i++) TR__TRY(is_whole(folder, steps[i], &passed_over));
    if (!passed_over)
        return tr__fail(TR_STATE, "%s holds checkpoint-%" PRId64 ", of a later step than %" PRId64 ": of another training? "
            "Resume from it, remove it, or choose another folder", folder, steps[0], step);
    for (int i = 0; i < later; i++) TR__TRY(set_aside(parent, folder, steps[i]));
    return TR_OK;
}

tr_status tr__checkpoint_make_room(int parent, const char *folder, int64_t step)
{
    int64_t *steps;
    int count, later = 0;
    tr_status status = list_steps(parent, folder, &steps, &count);
    for (int i = 0; i < count && status == TR_OK; i++) status = put_back(parent, folder, steps[i]);
    while (later < count && steps[later] > step) later++;
    if (status == TR_OK && later) status = make_room(parent, folder, step, steps, count, later);
    free(steps);
    return status;
}

static tr_status write_files(const char *path, const tr_checkpoint_save_options *o, tr__manifest *m)
{
    TR__TRY(tr__manifest_save_file(m, path, tr__checkpoint_files[TR__MODEL_FILE], o->model));
    TR__TRY(tr__manifest_save_file(m, path, tr__checkpoint_files[TR__STATE_FILE], o->state));
    if (o->metrics) {
        TR_SCOPE;
        int64_t count;
        const tr_metrics_row *rows = tr_metrics_rows(o->metrics, &count);
        TR__TRY(tr__manifest_save_file(m, path, tr__checkpoint_files[TR__HISTORY_FILE], tr__history_list(rows, count)));
    }
    return tr__manifest_write(m, path);
}

static tr_status write_checkpoint(int parent, const char *name, const tr_checkpoint_save_options *o)
{
    char path[PATH_MAX], aside[NAME + 1];
    snprintf(aside, sizeof aside, ".%s", name);
    TR__TRY(tr__path_join(path, o->folder, temporary));
    TR__TRY(remove_tree(parent, temporary, o->folder));
    if (mkdirat(parent, temporary, 0777) < 0) return tr__fail_errno(TR_IO, errno, "cannot make %s", path);
    tr__manifest m;
    tr_status status = tr__manifest_new(&m, o->step, o->loss ? *o->loss : NAN, o->model, o->state);
    if (status == TR_OK) status = write_files(path, o, &m);
    tr__manifest_free(&m);
    TR__TRY(status);
    /* The temporary folder becomes the checkpoint. One of the same step that was there before (of a run that had come as
     * far) changes places with it, so that there is always one; it is left under the temporary name. */
    bool exchanged = renameat2(parent, temporary, parent, name, RENAME_EXCHANGE) == 0;
    bool replaces = !exchanged && errno != ENOENT && renameat(parent, name, parent, aside) == 0;
    if (!exchanged && renameat(parent, temporary, parent, name) < 0)
        return tr__fail_errno(TR_IO, errno, "cannot make %s/%s", o->folder, name);
    TR__TRY(tr__folder_sync(parent, o->folder));
    if (replaces) clear_away(remove_checkpoint(parent, aside, o->folder));
    return TR_OK;
}

tr_status tr__checkpoint_save(int parent, const tr_checkpoint_save_options *o)
{
    TR__TRY(tr_status_of(o->metrics));
    TR__TRY(tr__checkpoint_make_room(parent, o->folder, o->step));
    char name[NAME];
    put_name(name, o->step);
    tr_status status = write_checkpoint(parent, name, o);
    if (status == TR_OK) {
        clear_away(remove_tree(parent, temporary, o->folder));
        clear_away(prune(parent, o));
    } else {
        TR__KEEP_ERROR; /* the first failure is reported */
        (void)remove_tree(parent, temporary, o->folder);
    }
    return status;
}

bool tr__checkpoint_lock(int folder_fd)
{
    return flock(folder_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

tr_status tr_checkpoint_save_with(const tr_checkpoint_save_options *o)
{
    if (!o->folder || !o->model || !o->state)
        return tr__fail(TR_INVALID, "checkpoint_save: %s is NULL", !o->folder ? "the folder" : !o->model ? "model" : "state");
    if (o->step < 0 || o->step > TR__MOST_STEP)
        return tr__fail(TR_INVALID, "checkpoint_save: .step is 0 to 2^53, which JSON holds exactly, not %" PRId64, o->step);
    int keep = TR__OR(o, keep, KEEP);
    if (keep < 1 || keep > TR__MOST_KEPT)
        return tr__fail(TR_INVALID, "checkpoint: .keep is a number of checkpoints, 1 to %d, not %d", TR__MOST_KEPT, keep);
    TR__TRY(tr__folder_make(o->folder));
    int parent = open(o->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return tr__fail_errno(TR_IO, errno, "cannot save into %s", o->folder);
    tr_status status = tr__checkpoint_lock(parent) ? tr__checkpoint_save(parent, o)
        : tr__fail(TR_STATE, "checkpoint_save: another process or thread is saving into %s, or a tr_fit() is writing into it. One "
              "saves into a folder: of several ranks, rank 0 alone", o->folder);
    flock(parent, LOCK_UN); /* a child that was forked meanwhile has the descriptor, and the lock, too */
    close(parent);
    return status;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

int64_t tr__checkpoint_named_step(const char *path)
{
    char *whole = realpath(path, NULL);
    int64_t step = whole ? step_of(strrchr(whole, '/') + 1) : -1;
    free(whole);
    return step;
}

/* Of the checkpoints in a folder, the newest that is older than a step. */
static tr_status find_before(const char *folder, int64_t before, char found[PATH_MAX], int64_t *step)
{
    int64_t *steps, newest = 0;
    int count, i = 0;
    tr_status status = list_steps(-1, folder, &steps, &count);
    while (i < count && steps[i] >= before) i++;
    if (i < count) newest = steps[i];
    free(steps);
    TR__TRY(status);
    if (i == count) return tr__fail(TR_NOT_FOUND, "%s has no checkpoint (a folder checkpoint-STEP) in it", folder);
    TR__TRY(path_of(found, folder, newest));
    *step = newest;
    return TR_OK;
}

tr_status tr_checkpoint_find(const char *folder, char *path, int64_t *step)
{
    if (!folder || !path || !step)
        return tr__fail(TR_INVALID, "checkpoint_find: %s is NULL", !folder ? "the folder" : !path ? "path" : "step");
    if (strlen(folder) >= PATH_MAX) return tr__fail(TR_INVALID, "the path %.60s… is too long", folder);
    char model[PATH_MAX], found[PATH_MAX];
    if (snprintf(model, sizeof model, "%s/%s", folder, tr__checkpoint_files[TR__MODEL_FILE]) < PATH_MAX &&
        access(model, F_OK) == 0) {
        *step = tr__checkpoint_named_step(folder);
        strcpy(path, folder);
        return TR_OK;
    }
    TR__TRY(find_before(folder, INT64_MAX, found, step));
    strcpy(path, found);
    return TR_OK;
}

tr_status tr_checkpoint_find_best(const char *folder, char *path, int64_t *step, double *loss)
{
    if (!folder || !path)
        return tr__fail(TR_INVALID, "checkpoint_find_best: %s is NULL", folder ? "path" : "the folder");
    int64_t *steps;
    int count;
    double least;
    char found[PATH_MAX];
    tr_status status = list_steps(-1, folder, &steps, &count);
    int64_t best = best_step(folder, steps, count, &least);
    free(steps);
    TR__TRY(status);
    if (best < 0)
        return tr__fail(TR_NOT_FOUND, "%s has no checkpoint with a validation loss: save with .loss, and .keep_best", folder);
    TR__TRY(path_of(found, folder, best));
    strcpy(path, found);
    if (step) *step = best;
    if (loss) *loss = least;
    return TR_OK;
}

/* ---- Held against the manifest ------------------------------------------------------------------------------------ */

tr_status tr__checkpoint_manifest(const char *path, tr__manifest *m, bool *known)
{
    tr_status status = tr__manifest_read(m, path);
    *known = status != TR_NOT_FOUND;
    if (status != TR_OK) return *known ? status : TR_OK;
    int64_t step = tr__checkpoint_named_step(path);
    if (step < 0 || step == m->step) return TR_OK;
    return tr__fail(TR_FORMAT, "%s: is the checkpoint of step %" PRId64 ", by its manifest, under another name", path, m->step);
}

/* m: NULL when there is no manifest. *list: NULL when the save has no such file. */
static tr_status load_file(const char *folder, const char *name, const tr__manifest *m, tr_tensor_list **list)
{
    char path[PATH_MAX];
    TR__TRY(tr__path_join(path, folder, name));
    *list = NULL;
    const tr__file_record *record = m ? tr__manifest_file(m, name) : NULL;
    if (m && !record) return TR_OK;
    *list = tr__safetensors_load(path, record);
    tr_status status = tr_status_of(*list);
    if (status != TR_OK) return status == TR_NOT_FOUND && record ? tr__fail(TR_FORMAT, "%s: is missing", path) : status;
    if (record || !tr_list_metadata(*list, tr__save_key)) return TR_OK;
    return tr__fail(TR_FORMAT, "%s: was saved with a manifest.json beside it, which is missing", path);
}

static tr_status load_known(const char *path, const tr__manifest *m, tr_tensor_list **model, tr_tensor_list **state,
    tr_tensor_list **history)
{
    TR__TRY(load_file(path, tr__checkpoint_files[TR__MODEL_FILE], m, model));
    if (state) TR__TRY(load_file(path, tr__checkpoint_files[TR__STATE_FILE], m, state));
    if (!*model || (state && !*state))
        return tr__fail(TR_FORMAT, "%s: its manifest has no %s", path,
            tr__checkpoint_files[*model ? TR__STATE_FILE : TR__MODEL_FILE]);
    if (!history) return TR_OK;
    tr_status status = load_file(path, tr__checkpoint_files[TR__HISTORY_FILE], m, history);
    if (status != TR_NOT_FOUND) return status;
    *history = NULL;
    return TR_OK;
}

tr_status tr__checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state, tr_tensor_list **history)
{
    tr__manifest m;
    bool known = false;
    tr_status status = tr__checkpoint_manifest(path, &m, &known);
    if (status == TR_OK) status = load_known(path, known ? &m : NULL, model, state, history);
    if (status == TR_OK && !known) tr__log(TR_LOG_WARN, "%s has no manifest.json: nothing of it was verified", path);
    tr__manifest_free(&m);
    /* A power cut can leave the folder without its files. A folder that is missing is not damaged. */
    struct stat s;
    if (status == TR_NOT_FOUND && stat(path, &s) == 0 && tr__checkpoint_named_step(path) >= 0)
        return tr__fail_context(TR_FORMAT, "%s: a file is missing", path);
    return status;
}

tr_status tr_checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state)
{
    if (!path || !model) return tr__fail(TR_INVALID, "checkpoint_load: %s is NULL", path ? "model" : "the path");
    return tr__checkpoint_load(path, model, state, NULL);
}

tr_status tr__checkpoint_load_newest(const char *folder, char *path, int64_t *step, int64_t *damaged, tr_tensor_list **model,
    tr_tensor_list **state, tr_tensor_list **history)
{
    char found[PATH_MAX];
    int64_t at;
    *damaged = 0;
    TR__TRY(tr_checkpoint_find(folder, found, &at));
    bool several = strcmp(found, folder) != 0;
    for (;;) {
        tr_status status = tr__checkpoint_load(found, model, state, history);
        if (status == TR_OK) break;
        char passed_over[PATH_MAX];
        tr__error *why = tr__error_take();
        strcpy(passed_over, found);
        /* A checkpoint that cannot be read for another reason, such as a permission, is an error. */
        bool older = several && status == TR_FORMAT && find_before(folder, at, found, &at) == TR_OK;
        status = tr__error_restore(why);
        if (!older) return status;
        tr__log(TR_LOG_WARN, "%s is damaged (%s): going on from %s", passed_over, tr_error_message(), found);
        ++*damaged;
    }
    strcpy(path, found);
    *step = at;
    return TR_OK;
}

tr_status tr_checkpoint_find_whole(const char *folder, char *path, int64_t *step)
{
    if (!path || !step) return tr__fail(TR_INVALID, "checkpoint_find_whole: %s is NULL", path ? "step" : "path");
    TR_SCOPE;
    int64_t damaged;
    tr_tensor_list *model, *state, *history;
    return tr__checkpoint_load_newest(folder, path, step, &damaged, &model, &state, &history);
}
