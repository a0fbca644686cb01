#include "base/atomic_file.h"
#include "base/object.h"

#include <trireme/train.h>

tr_status tr_write_file(const char *path, const void *data, size_t bytes)
{
    tr__atomic_file file;
    TR__TRY(tr__atomic_open(&file, path));
    TR__TRY(tr__atomic_write(&file, data, bytes));
    return tr__atomic_commit(&file);
}
