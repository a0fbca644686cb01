/* What the plug-in's tests share: it stands beside the library here, opened by the test, and gets tensors of the CPU's
 * as copies. */
#ifndef TESTS_CUDA_ON_DEVICE_H
#define TESTS_CUDA_ON_DEVICE_H

#include "tensor/tensor.h"

#include <trireme/device.h>
#include <trireme/kernels.h>

/* The plug-in's table, opened at the first call. The test fails when that does. */
const tr_device_table *on_device(void);

/* Copies of storages on cuda:0; tensors that share one share its copy. */
enum { ON_DEVICE_MOST = 20 };
typedef struct device_copies {
    tr__storage *storage[ON_DEVICE_MOST];
    void *copy[ON_DEVICE_MOST];
    int n;
} device_copies;

/* t as a kernel sees it, of the storage as it is when it is first asked for; NULL gives no tensor. */
tr_device_tensor on_device_view(device_copies *copies, const tr_tensor *t);
/* Waits, and gives what t's storage has on the device: free() it. */
char *on_device_back(const device_copies *copies, const tr_tensor *t);
void on_device_free(device_copies *copies);

/* NULL: there is none for the op. */
const tr_kernel_entry *on_device_kernel(const char *op);
/* Runs it; the test fails when it does. */
void on_device_run(const char *op, const void *attrs, size_t attrs_size, const tr_device_tensor *inputs, int n_inputs,
    const tr_device_tensor *outputs, int n_outputs);

/* From now on a wrong number or a kernel that refuses is told, and the test goes on, so that one run on a GPU names all
 * that is wrong; on_device_failed() is the teardown that then fails the test. A device that is lost still ends it. */
void on_device_go_on(void);
int on_device_failed(void **state);

/* Fails the test when an element of t, as `back` has it, differs from t's by more than tolerance times (its size + the
 * largest of t's, or 1 if that is larger). */
void on_device_compare(const char *what, const tr_tensor *t, const char *back, double tolerance);

#endif
