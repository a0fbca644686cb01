/*
 * Checkpoints: FOLDER/checkpoint-STEP/{model,state}.safetensors.
 *
 * Both files must be of the same step, so they appear together: they are written into FOLDER/.checkpoint.tmp, which one
 * rename makes the checkpoint. There is no pointer to the newest one that could disagree with the folders: the newest
 * is the one with the highest step.
 */
#include "base/folder.h"
#include "base/log.h"
#include "train/atomic_file.h"
#include "train/checkpoint.h"

#include <trireme/train.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kept = 2 };

static const char temporary[] = ".checkpoint.tmp";
static const char discarded[] = ".checkpoint.old";
static const char prefix[] = "checkpoint-";

/* The step in the name of a checkpoint, or -1. Only names that this file writes count: no signs, no leading zeros. */
static int64_t step_of(const char *name)
{
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
    const char *digits = name + sizeof prefix - 1;
    size_t length = strlen(digits);
    if (!length || length > 18 || strspn(digits, "0123456789") != length || (*digits == '0' && length > 1)) return -1;
    return strtoll(digits, NULL, 10);
}

static tr_status join(char path[PATH_MAX], const char *folder, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return TR_OK;
    return tr__fail(TR_INVALID, "the path %.60s…/%s is too long", folder, name);
}

/* ---- Removing ---------------------------------------------------------------------------------------------------- */

/* Removes a file, a link (not what it leads to), or a folder with all that is in it. */
static tr_status remove_tree(int parent, const char *name, const char *folder)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return TR_OK;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
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

/* A checkpoint goes as it came, at once: a half-removed one is none. */
static tr_status remove_checkpoint(int parent, const char *name, const char *folder)
{
    TR__TRY(remove_tree(parent, discarded, folder));
    if (renameat(parent, name, parent, discarded) < 0 && errno != ENOENT)
        return tr__fail_errno(TR_IO, errno, "cannot remove %s/%s", folder, name);
    return remove_tree(parent, discarded, folder);
}

static bool is_folder(int parent, const char *name)
{
    struct stat s;
    return fstatat(parent, name, &s, 0) == 0 && S_ISDIR(s.st_mode);
}

/* The steps of the checkpoints in a folder, the `most` highest of them, falling. Returns how many. */
static int list_steps(DIR *d, int64_t *steps, int most)
{
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(d))) {
        int64_t step = step_of(entry->d_name);
        if (step < 0 || (count == most && step <= steps[most - 1]) || !is_folder(dirfd(d), entry->d_name)) continue;
        int at = count < most ? count++ : most - 1;
        for (; at > 0 && steps[at - 1] < step; at--) steps[at] = steps[at - 1];
        steps[at] = step;
    }
    return count;
}

/* The same, of a folder that is open. */
static tr_status list_steps_at(int parent, const char *folder, int64_t *steps, int most, int *count)
{
    *count = 0;
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        tr_status status = tr__fail_errno(TR_IO, errno, "cannot read %s", folder);
        if (fd >= 0) close(fd);
        return status;
    }
    *count = list_steps(d, steps, most);
    closedir(d);
    return TR_OK;
}

/* Removes every checkpoint but the newest two, and the one of the step that was saved just now. */
static tr_status prune(int parent, const char *folder, int64_t saved)
{
    for (;;) {
        int64_t steps[kept + 2];
        int count;
        TR__TRY(list_steps_at(parent, folder, steps, kept + 2, &count));
        int at = count > kept && steps[kept] == saved ? kept + 1 : kept;
        if (at >= count) return TR_OK;
        char name[64];
        snprintf(name, sizeof name, "%s%" PRId64, prefix, steps[at]);
        TR__TRY(remove_checkpoint(parent, name, folder));
    }
}

/* What cannot be cleared away takes room, and is no reason to end a training. */
static void clear_away(tr_status status)
{
    if (status != TR_OK) tr__log(TR_LOG_WARN, "an old checkpoint stays: %s", tr_error_message());
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static tr_status save_file(const char *folder, const char *name, const tr_tensor_list *list)
{
    char path[PATH_MAX];
    TR__TRY(join(path, folder, name));
    return tr_safetensors_save(path, list);
}

/* The temporary folder becomes the checkpoint. One of the same step that was there before (of a run that had come as
 * far) changes places with it, so that there is always one; it is left under the temporary name. */
static tr_status put_in_place(int parent, const char *folder, const char *name)
{
    if (renameat2(parent, temporary, parent, name, RENAME_EXCHANGE) == 0) return TR_OK;
    if (errno != ENOENT) TR__TRY(remove_checkpoint(parent, name, folder)); /* a file system that cannot exchange */
    if (renameat(parent, temporary, parent, name) == 0) return TR_OK;
    return tr__fail_errno(TR_IO, errno, "cannot make %s/%s", folder, name);
}

static tr_status write_checkpoint(
    int parent, const char *folder, const char *name, const tr_tensor_list *model, const tr_tensor_list *state)
{
    char path[PATH_MAX];
    TR__TRY(join(path, folder, temporary));
    TR__TRY(remove_tree(parent, temporary, folder));
    if (mkdirat(parent, temporary, 0777) < 0) return tr__fail_errno(TR_IO, errno, "cannot make %s", path);
    TR__TRY(save_file(path, "model.safetensors", model));
    TR__TRY(save_file(path, "state.safetensors", state));
    TR__TRY(put_in_place(parent, folder, name));
    return tr__folder_sync(parent, folder);
}

tr_status tr_checkpoint_save(const char *folder, int64_t step, const tr_tensor_list *model, const tr_tensor_list *state)
{
    if (step < 0) return tr__fail(TR_INVALID, "a checkpoint of step %" PRId64, step);
    char name[64];
    snprintf(name, sizeof name, "%s%" PRId64, prefix, step);
    TR__TRY(tr__folder_make(folder, 0777));
    int parent = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) return tr__fail_errno(TR_IO, errno, "cannot save into %s", folder);
    tr_status status = write_checkpoint(parent, folder, name, model, state);
    if (status == TR_OK) {
        clear_away(remove_tree(parent, temporary, folder));
        clear_away(prune(parent, folder, step));
    } else {
        tr__error *first = tr__error_take();
        (void)remove_tree(parent, temporary, folder); /* the failure to tell of is the first one */
        tr__fail_stored(first);
        tr__error_unref(first);
    }
    close(parent);
    return status;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static bool has_model(const char *folder)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/model.safetensors", folder) < PATH_MAX && access(path, F_OK) == 0;
}

tr_status tr__checkpoint_newest(int folder_fd, const char *folder, int64_t *step)
{
    int count;
    *step = -1;
    return list_steps_at(folder_fd, folder, step, 1, &count);
}

tr_status tr_checkpoint_find(const char *folder, char *path, int64_t *step)
{
    if (strlen(folder) >= PATH_MAX) return tr__fail(TR_INVALID, "the path %.60s… is too long", folder);
    if (has_model(folder)) {
        char *whole = realpath(folder, NULL);
        *step = whole ? step_of(strrchr(whole, '/') + 1) : -1;
        free(whole);
        strcpy(path, folder);
        return TR_OK;
    }
    DIR *d = opendir(folder);
    if (!d) return tr__fail_errno(errno == ENOENT ? TR_NOT_FOUND : TR_IO, errno, "cannot read %s", folder);
    int64_t newest = -1;
    int count = list_steps(d, &newest, 1);
    closedir(d);
    if (!count) return tr__fail(TR_NOT_FOUND, "%s has no checkpoint (a folder checkpoint-STEP) in it", folder);
    char name[64], found[PATH_MAX];
    snprintf(name, sizeof name, "%s%" PRId64, prefix, newest);
    TR__TRY(join(found, folder, name));
    strcpy(path, found);
    *step = newest;
    return TR_OK;
}

static tr_status load_file(const char *folder, const char *name, tr_tensor_list **list)
{
    char path[PATH_MAX];
    TR__TRY(join(path, folder, name));
    *list = tr_safetensors_load(path);
    return tr_status_of(*list);
}

tr_status tr_checkpoint_load(const char *path, tr_tensor_list **model, tr_tensor_list **state)
{
    TR__TRY(load_file(path, "model.safetensors", model));
    return state ? load_file(path, "state.safetensors", state) : TR_OK;
}
