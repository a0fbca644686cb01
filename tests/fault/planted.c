/* Defences of the library that the attempt's page may ask to take out, in the job alone. */
#include "inject.h"

#include "train/file_record.h"
#include "train/history.h"

#include <trireme/optim.h>

#include <math.h>

tr_tensor_list *__real_tr__safetensors_load(const char *path, const tr__file_record *record);
tr_tensor_list *__wrap_tr__safetensors_load(const char *path, const tr__file_record *record);
tr_status __real_tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count);
tr_status __wrap_tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count);
tr_status __real_tr_optimizer_load(tr_optimizer *optimizer, const tr_tensor_list *state);
tr_status __wrap_tr_optimizer_load(tr_optimizer *optimizer, const tr_tensor_list *state);

static bool planted(defect d)
{
    return injected() && injected()->defect == d;
}

tr_tensor_list *__wrap_tr__safetensors_load(const char *path, const tr__file_record *record)
{
    return __real_tr__safetensors_load(path, planted(DEFECT_CHECKSUM) ? NULL : record);
}

tr_status __wrap_tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count)
{
    tr_status status = __real_tr__history_rows(list, rows, count);
    if (status == TR_OK && *count && planted(DEFECT_ROW)) (*rows)[*count - 1].validation_loss = NAN;
    return status;
}

tr_status __wrap_tr_optimizer_load(tr_optimizer *optimizer, const tr_tensor_list *state)
{
    return planted(DEFECT_STATE) ? TR_OK : __real_tr_optimizer_load(optimizer, state);
}
