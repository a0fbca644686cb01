#include "trial.h"

#include <trireme/train.h>

#include <stdlib.h>
#include <string.h>

static bool same_tensors(const tr_tensor_list *ours, const tr_tensor_list *theirs, const char *what, char wrong[TEXT])
{
    if (tr_status_of(ours) != TR_OK || tr_status_of(theirs) != TR_OK)
        return object(wrong, "%s cannot be read: %s", what, tr_error_message());
    if (tr_list_count(ours) != tr_list_count(theirs))
        return object(wrong, "%s has %d tensors, not %d", what, tr_list_count(ours), tr_list_count(theirs));
    for (int i = 0; i < tr_list_count(theirs); i++) {
        const char *name = tr_list_name(theirs, i);
        const tr_tensor *a = tr_list_find(ours, name), *b = tr_list_at(theirs, i);
        if (strcmp(name, "seconds") == 0 || strcmp(name, "items_per_s") == 0) continue; /* of the history */
        if (!a || tr_numel(a) != tr_numel(b) || tr_dtype_of(a) != tr_dtype_of(b))
            return object(wrong, "%s lacks %s of %lld elements", what, name, (long long)tr_numel(b));
        size_t bytes = (size_t)tr_numel(b) * tr_dtype_size(tr_dtype_of(b));
        if (memcmp(tr_data(a), tr_data(b), bytes) != 0)
            return object(wrong, "%s: %s is not that of an undisturbed training, bit for bit", what, name);
    }
    return true;
}

/* Of a line of metrics, the columns but for the two that tell of times. */
static void without_times(char *line)
{
    char kept[1024] = "", *at = line, *field;
    size_t length = 0;
    for (int column = 0; (field = strsep(&at, ",\n")); column++)
        if (column != 5 && column != 7 && length < sizeof kept)
            length += (size_t)snprintf(kept + length, sizeof kept - length, "%s,", field);
    strcpy(line, kept);
}

static bool same_metrics(const char *folder, const char *expected, char wrong[TEXT])
{
    char path[PATH_MAX], ours[1024] = "", theirs[1024];
    snprintf(path, sizeof path, "%s/metrics.csv", folder);
    FILE *a = fopen(path, "re");
    snprintf(path, sizeof path, "%s/metrics.csv", expected);
    FILE *b = fopen(path, "re");
    bool same = a && b;
    while (same && fgets(theirs, sizeof theirs, b)) {
        same = fgets(ours, sizeof ours, a);
        if (!same) break;
        without_times(ours);
        without_times(theirs);
        same = strcmp(ours, theirs) == 0;
    }
    if (same && fgets(ours, sizeof ours, a)) same = false;
    if (a) fclose(a);
    if (b) fclose(b);
    return same || object(wrong, "metrics.csv is not that of an undisturbed training: %s", ours);
}

bool compare_trainings(const char *folder, const char *expected, char wrong[TEXT])
{
    TR_SCOPE;
    char ours[PATH_MAX], theirs[PATH_MAX], a[PATH_MAX + 32], b[PATH_MAX + 32];
    int64_t step, last;
    tr_tensor_list *model, *state, *expected_model, *expected_state;
    if (tr_checkpoint_find(expected, theirs, &last) != TR_OK || tr_checkpoint_find(folder, ours, &step) != TR_OK)
        return object(wrong, "%s", tr_error_message());
    if (step != last)
        return object(wrong, "the newest checkpoint is of step %lld, not %lld", (long long)step, (long long)last);
    if (tr_checkpoint_load(ours, &model, &state) != TR_OK ||
        tr_checkpoint_load(theirs, &expected_model, &expected_state) != TR_OK)
        return object(wrong, "%s", tr_error_message());
    snprintf(a, sizeof a, "%s/history.safetensors", ours);
    snprintf(b, sizeof b, "%s/history.safetensors", theirs);
    return same_tensors(model, expected_model, "the model", wrong) &&
           same_tensors(state, expected_state, "the optimizer's state", wrong) &&
           same_tensors(tr_safetensors_load(a), tr_safetensors_load(b), "the metrics", wrong) &&
           same_metrics(folder, expected, wrong);
}
