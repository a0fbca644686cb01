/* Defences of the library that the attempt's page may ask to take out, in the job alone. */
#include "inject.h"

#include "base/crc32c.h"
#include "net/checked.h"
#include "train/file_record.h"
#include "train/history.h"

#include <trireme/optim.h>

#include <math.h>

tr_tensor_list *__real_tr__safetensors_load(const char *path, const tr__file_record *record);
tr_tensor_list *__wrap_tr__safetensors_load(const char *path, const tr__file_record *record);
tr_status __real_tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count);
tr_status __wrap_tr__history_rows(const tr_tensor_list *list, tr_metrics_row **rows, int64_t *count);
tr_status __real_tr_optimizer_load_at(tr_optimizer *optimizer, const tr_tensor_list *state, const char *file, int line);
tr_status __wrap_tr_optimizer_load_at(tr_optimizer *optimizer, const tr_tensor_list *state, const char *file, int line);
uint32_t __real_tr__crc32c(uint32_t crc, const void *data, size_t bytes);
uint32_t __wrap_tr__crc32c(uint32_t crc, const void *data, size_t bytes);
ssize_t __real_tr__checked_send(tr__checked_sender *s, int socket, const struct iovec *parts, int count);
ssize_t __wrap_tr__checked_send(tr__checked_sender *s, int socket, const struct iovec *parts, int count);
ssize_t __real_tr__checked_receive(tr__checked_receiver *r, int socket, char *memory, size_t room, bool stays);
ssize_t __wrap_tr__checked_receive(tr__checked_receiver *r, int socket, char *memory, size_t room, bool stays);

static _Thread_local bool on_wire; /* this thread sends or receives */

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

tr_status __wrap_tr_optimizer_load_at(tr_optimizer *optimizer, const tr_tensor_list *state, const char *file, int line)
{
    return planted(DEFECT_STATE) ? TR_OK : __real_tr_optimizer_load_at(optimizer, state, file, line);
}

/* The checksum of every message is 0, and so is that of what came instead. */
uint32_t __wrap_tr__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return on_wire && planted(DEFECT_WIRE) ? 0 : __real_tr__crc32c(crc, data, bytes);
}

ssize_t __wrap_tr__checked_send(tr__checked_sender *s, int socket, const struct iovec *parts, int count)
{
    on_wire = true;
    ssize_t sent = __real_tr__checked_send(s, socket, parts, count);
    on_wire = false;
    return sent;
}

ssize_t __wrap_tr__checked_receive(tr__checked_receiver *r, int socket, char *memory, size_t room, bool stays)
{
    on_wire = true;
    ssize_t got = __real_tr__checked_receive(r, socket, memory, room, stays);
    on_wire = false;
    return got;
}
