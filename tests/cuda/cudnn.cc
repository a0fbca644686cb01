/*
 * A double of cuDNN's graph interface for convolutions, and how the doubles of libraries are found by name. A
 * descriptor is what has been set in it, by value. The heuristic names three engines: one whose order of sums is not
 * fixed, one that rounds f32 (or, for other types, that takes no graph), and one that serves; to run one of the first
 * two is a failure. CUDA_EMULATOR="fail=cudnnBackendExecute:2" lets the second call fail, as of any function; of
 * "libcudnn" or "libcublasLt" the library is not found.
 */
#include <cstring>
#include <map>
#include <vector>

#include "reference.h"
#include "cudart.h"
#include "cudnn_abi.h"

using namespace tr_emulator;

struct cudnnContext { cudaStream_t stream; };

struct cudnnBackendDescriptor {
    int type, engine; /* engine: of configurations and what is made of them */
    bool finalized;
    std::map<int, std::vector<char>> values;
    std::map<int, cudnnBackendDescriptor> parts;

    template <typename T> std::vector<T> all(int attribute) const
    {
        auto found = values.find(attribute);
        if (found == values.end()) return {};
        std::vector<T> result(found->second.size() / sizeof(T));
        memcpy(static_cast<void *>(result.data()), found->second.data(), result.size() * sizeof(T));
        return result;
    }
    template <typename T> T one(int attribute) const { return all<T>(attribute).at(0); }
};

namespace {

enum { UNORDERED, ROUNDING, SERVES, ENGINES };
enum { WORKSPACE = 192 };

size_t size_of(int type)
{
    return type == CUDNN_TYPE_DATA_TYPE || type == CUDNN_TYPE_FLOAT || type == CUDNN_TYPE_CONVOLUTION_MODE ||
        type == CUDNN_TYPE_HEUR_MODE || type == CUDNN_TYPE_NUMERICAL_NOTE ? 4 : 8;
}

struct tensor {
    int type;
    int64_t id;
    std::vector<int64_t> dim, stride;
    int64_t alignment;

    explicit tensor(const cudnnBackendDescriptor &d)
        : type(d.one<int>(CUDNN_ATTR_TENSOR_DATA_TYPE)), id(d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
          dim(d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)), stride(d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
          alignment(d.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
    {
        if (type == CUDNN_DATA_BFLOAT16) type = CUBLASLT_R_16BF; /* the others are alike */
    }
    int64_t count() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
    int64_t at(const int64_t (&i)[4]) const
    {
        return i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3];
    }
};

struct convolution {
    int kind; /* the operation's descriptor type */
    tensor x, w, y;
    std::vector<int64_t> step, padding, dilation;
    float beta;

    static const cudnnBackendDescriptor &part(const cudnnBackendDescriptor &op, int forward, int data, int filter)
    {
        return op.parts.at(op.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR        ? forward
                           : op.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? data
                                                                                                    : filter);
    }
    explicit convolution(const cudnnBackendDescriptor &op)
        : kind(op.type),
          x(part(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X)),
          w(part(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW)),
          y(part(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY))
    {
        const int alpha = kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
            ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA
            : kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
            ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
        const cudnnBackendDescriptor &how = op.parts.at(alpha + 2);
        beta = op.one<float>(alpha + 1);
        step = how.all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
        padding = how.all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
        dilation = how.all<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    }

    bool is_possible() const
    {
        bool fits = beta == 0 && x.type == w.type && x.type == y.type && x.type != CUBLASLT_R_64F &&
            x.dim[0] == y.dim[0] && w.dim[0] == y.dim[1] && x.dim[1] % w.dim[1] == 0;
        for (size_t d = 0; fits && d < 2; d++)
            fits = y.dim[2 + d] <= (x.dim[2 + d] + 2 * padding[d] - dilation[d] * (w.dim[2 + d] - 1) - 1) / step[d] + 1;
        return fits;
    }

    void run(void *at_x, void *at_w, void *at_y) const
    {
        const bool forward = kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                   data = kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
        const tensor &to = forward ? y : data ? x : w;
        const int64_t channels = w.dim[1], outs = w.dim[0] / (x.dim[1] / channels); /* of a group */
        std::map<int64_t, double> sums;
        int64_t i[4], o[4], f[4];
        for (i[0] = 0; i[0] < to.dim[0]; i[0]++) /* what no term reaches is 0 */
            for (i[1] = 0; i[1] < to.dim[1]; i[1]++)
                for (i[2] = 0; i[2] < to.dim[2]; i[2]++)
                    for (i[3] = 0; i[3] < to.dim[3]; i[3]++) sums[to.at(i)] = 0;
        for (int64_t term = 0; term < y.count() * channels * w.dim[2] * w.dim[3]; term++) {
            int64_t rest = term;
            const auto digit = [&](int64_t n) {
                const int64_t result = rest % n;
                rest /= n;
                return result;
            };
            f[3] = digit(w.dim[3]), f[2] = digit(w.dim[2]), f[1] = digit(channels);
            o[3] = digit(y.dim[3]), o[2] = digit(y.dim[2]), o[1] = f[0] = digit(y.dim[1]),
            o[0] = i[0] = digit(y.dim[0]);
            i[1] = f[0] / outs * channels + f[1];
            for (size_t d = 0; d < 2; d++) i[2 + d] = o[2 + d] * step[d] - padding[d] + f[2 + d] * dilation[d];
            if (i[2] < 0 || i[2] >= x.dim[2] || i[3] < 0 || i[3] >= x.dim[3]) continue;
            if (forward) sums[y.at(o)] += load(x.type, at_x, x.at(i)) * load(w.type, at_w, w.at(f));
            else if (data) sums[x.at(i)] += load(y.type, at_y, y.at(o)) * load(w.type, at_w, w.at(f));
            else sums[w.at(f)] += load(x.type, at_x, x.at(i)) * load(y.type, at_y, y.at(o));
        }
        for (const auto &sum : sums) store(to.type, forward ? at_y : data ? at_x : at_w, sum.first, sum.second);
    }
};

const cudnnBackendDescriptor &operation_of(const cudnnBackendDescriptor &graph)
{
    return graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
}

} /* namespace */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    if (call_fails("cudnnCreate")) return CUDNN_STATUS_EXECUTION_FAILED;
    *handle = new cudnnContext{};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return call_fails("cudnnSetStream") ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *descriptor)
{
    if (call_fails("cudnnBackendCreateDescriptor")) return CUDNN_STATUS_EXECUTION_FAILED;
    *descriptor = new cudnnBackendDescriptor{type, 0, false, {}, {}};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    delete descriptor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, int attribute, int type, int64_t count,
                                       const void *values)
{
    if (call_fails("cudnnBackendSetAttribute")) return CUDNN_STATUS_EXECUTION_FAILED;
    if (d->finalized) return CUDNN_STATUS_BAD_PARAM;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        const cudnnBackendDescriptor &part = **static_cast<const cudnnBackendDescriptor_t *>(values);
        if (!part.finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
        d->parts[attribute] = part;
        return CUDNN_STATUS_SUCCESS;
    }
    const char *from = static_cast<const char *>(values);
    d->values[attribute].assign(from, from + static_cast<size_t>(count) * size_of(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    if (call_fails("cudnnBackendFinalize")) return CUDNN_STATUS_EXECUTION_FAILED;
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && !convolution(operation_of(*d)).is_possible())
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        d->engine = d->parts.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine;
        const auto &graph =
            d->parts.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        if (d->engine == ROUNDING && convolution(operation_of(graph)).x.type != CUBLASLT_R_32F)
            return CUDNN_STATUS_NOT_SUPPORTED;
    }
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, int attribute, int, int64_t wanted, int64_t *count,
    void *values)
{
    const auto part = [&](int64_t i) -> cudnnBackendDescriptor & {
        return *static_cast<cudnnBackendDescriptor_t *>(values)[i];
    };
    if (call_fails("cudnnBackendGetAttribute")) return CUDNN_STATUS_EXECUTION_FAILED;
    *count = 1;
    switch (attribute) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        for (*count = 0; *count < std::min<int64_t>(wanted, ENGINES); ++*count)
            part(*count) = {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, static_cast<int>(*count), true, {}, d->parts};
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        part(0) = {CUDNN_BACKEND_ENGINE_DESCRIPTOR, d->engine, true, {}, d->parts};
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = d->engine != SERVES;
        *static_cast<int *>(values) =
            d->engine == UNORDERED ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *static_cast<int64_t *>(values) = WORKSPACE;
        return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_BAD_PARAM;
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const auto ids = pack->all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto data = pack->all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *workspace = pack->one<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (!plan->finalized || !pack->finalized || !workspace || plan->engine != SERVES) return CUDNN_STATUS_BAD_PARAM;
    const auto &config = plan->parts.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    const convolution c(operation_of(config.parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)));
    void *at[3] = {};
    const tensor *const tensors[] = {&c.x, &c.w, &c.y};
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < ids.size(); i++)
            if (ids[i] == tensors[t]->id) at[t] = data[i];
    for (size_t t = 0; t < 3; t++)
        if (!at[t] || reinterpret_cast<uintptr_t>(at[t]) % static_cast<uintptr_t>(tensors[t]->alignment))
            return CUDNN_STATUS_BAD_PARAM;
    const cudaError_t error = enqueue(handle->stream, {"cudnnBackendExecute", [=, x = at[0], w = at[1], y = at[2]] {
        memset(workspace, 0xff, WORKSPACE);
        c.run(x, w, y);
        return cudaSuccess;
    }, nullptr});
    return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

/* ---- Found by name ----------------------------------------------------------------------------------------------- */

namespace tr_emulator {

const library_entry cudnn_functions[] = {
#define ENTRY(function) {#function, reinterpret_cast<void *>(function)},
    CUDNN_FUNCTIONS(ENTRY) {nullptr, nullptr}
};

void *library_open(const char *name)
{
    const library_entry *found = nullptr;
    if (strncmp(name, "libcublasLt.so.", 15) == 0 && !call_fails("libcublasLt")) found = cublaslt_functions;
    if (strcmp(name, "libcudnn.so.9") == 0 && !call_fails("libcudnn")) found = cudnn_functions;
    return const_cast<library_entry *>(found);
}

void *library_find(void *library, const char *function)
{
    const auto *entry = static_cast<const library_entry *>(library);
    while (entry->name && strcmp(entry->name, function) != 0) entry++;
    return entry->address;
}

} /* namespace tr_emulator */
