/* cuDNN's graph interface as convolutions and attention describe themselves by it: cudnn.cu has the common part. */
#ifndef TRIREME_CUDA_CUDNN_PLAN_H
#define TRIREME_CUDA_CUDNN_PLAN_H

#include "cudnn_abi.h"
#include "library.h"

#include <vector>

struct cudnn_library {
#define POINTER(function) decltype(&::function) function;
    CUDNN_FUNCTIONS(POINTER)
#undef POINTER
};

/* NULL: it is not there. */
const cudnn_library *cudnn();

/* A descriptor; the first failure stays in `status`, and what comes after it does nothing. TRIREME_LOG=debug shows why. */
struct descriptor {
    const int type;
    cudnnBackendDescriptor_t at = nullptr;
    cudnnStatus_t status;

    explicit descriptor(int of_type);
    ~descriptor();
    descriptor(const descriptor &) = delete;
    descriptor &operator=(const descriptor &) = delete;

    void set(int attribute, int value_type, int64_t count, const void *values);
    void set(int attribute, int value_type, int value) { set(attribute, value_type, 1, &value); }
    void set(int attribute, int64_t value) { set(attribute, CUDNN_TYPE_INT64, 1, &value); }
    void set(int attribute, const std::vector<const descriptor *> &of);
    void set(int attribute, const descriptor &of) { set(attribute, std::vector<const descriptor *>{&of}); }
    void finalize();
};

/* How a tensor's numbers come: from memory, from operation to operation, or as one number of the host's. */
enum class tensor_kind { MEMORY, INNER, NUMBER };

struct cudnn_plan {
    std::vector<std::unique_ptr<descriptor>> parts; /* they stay as long as the plan that was made of them */
    descriptor *execution = nullptr;                /* NULL: cuDNN has no engine for it */
    int64_t workspace = 0;

    descriptor &add(int type) { return *parts.emplace_back(new descriptor(type)); }
    /* Of four dimensions; type: CUDNN_DATA_… */
    descriptor &tensor(int64_t id, int type, const int64_t *dims, const int64_t *strides, int64_t alignment,
                       tensor_kind kind = tensor_kind::MEMORY);
    /* Says in `execution` whether cuDNN can run the graph of these operations. exact: f32 is multiplied in full. */
    cudnnStatus_t make(cudnnHandle_t handle, const std::vector<const descriptor *> &operations, bool exact);

private:
    bool fused = false; /* of several operations: shapes are few, and engines that compile the best */
    cudnnStatus_t ask(cudnnHandle_t handle, int mode, const descriptor &graph, bool exact);
    bool choose(cudnnHandle_t handle, const descriptor &config, bool exact, bool compiling);
};

int cudnn_type_of(int64_t dtype);
bool is_unsupported(cudnnStatus_t status);
tr_status check_cudnn(cudnnStatus_t status, const char *what);
tr_status create_cudnn(cudnnHandle_t *made);
/* Enqueues a plan with its tensors' memory. */
tr_status run_plan(const job &j, cudnnHandle_t handle, const cudnn_plan &plan, int64_t n, const int64_t *ids,
                   void *const *data);

#endif
