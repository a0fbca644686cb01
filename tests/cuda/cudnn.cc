/*
 * A double of cuDNN's graph interface for convolutions, and how the doubles of libraries are found by name. A
 * descriptor is what has been set in it, by value. The heuristic names engines of which most must not be taken, by
 * their numerical notes or for their workspace. As with the real one, what adds f32 in
 * full and in a fixed order is named in the fallback mode alone. CUDA_EMULATOR="fail=cudnnBackendExecute:2" lets
 * the second call fail, as of any function; of "libcudnn" or "libcublasLt" the library is not found, of "dlsym" a
 * function of it.
 */
#include "library.h"
#include "cudnn_abi.h"

using namespace tr_emulator;

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

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

enum : int64_t { WORKSPACE = 192, TOO_LARGE = int64_t(2) << 30 };

/* To run another than ROUNDING, which takes no graph of 16-bit types, or SERVES, which has no note, is a failure. */
enum { UNORDERED, ROUNDING, NARROWING, REDUCING, FOURIER, WINOGRAD, LARGE_WINOGRAD, GREEDY, SERVES };
const int notes[] = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
    CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};

size_t size_of(int type)
{
    return type == CUDNN_TYPE_DATA_TYPE || type == CUDNN_TYPE_FLOAT || type == CUDNN_TYPE_CONVOLUTION_MODE ||
        type == CUDNN_TYPE_HEUR_MODE || type == CUDNN_TYPE_NUMERICAL_NOTE ? 4 : 8;
}

typedef std::array<int64_t, 4> index4; /* n, c, h, w */

struct tensor {
    element type;
    int64_t id, alignment;
    index4 dim, stride;

    explicit tensor(const cudnnBackendDescriptor &d)
        : id(d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
          alignment(d.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
    {
        const int of = d.one<int>(CUDNN_ATTR_TENSOR_DATA_TYPE);
        const auto dims = d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                   strides = d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
        type = of == CUDNN_DATA_FLOAT ? element::f32 : of == CUDNN_DATA_HALF ? element::f16 : element::bf16;
        for (size_t i = 0; i < 4; i++) dim[i] = dims.at(i), stride[i] = strides.at(i);
    }
    int64_t at(const index4 &i) const
    {
        return i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3];
    }
};

/* An operation's descriptor type and attributes; the tensor of `to` is the one that it writes. */
struct kind {
    int type, alpha, x, w, y;
    enum { X, W, Y } to;
};
const kind kinds[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, kind::Y},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, kind::X},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, kind::W}};

struct convolution {
    const kind &of; /* of kinds */
    tensor x, w, y;
    std::vector<int64_t> step, padding, dilation;
    float beta;

    convolution(const cudnnBackendDescriptor &op, const kind &k)
        : of(k), x(op.parts.at(k.x)), w(op.parts.at(k.w)), y(op.parts.at(k.y)), beta(op.one<float>(k.alpha + 1))
    {
        const cudnnBackendDescriptor &how = op.parts.at(k.alpha + 2);
        step = how.all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
        padding = how.all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
        dilation = how.all<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    }

    bool is_possible() const
    {
        bool fits = beta == 0 && x.type == w.type && x.type == y.type && x.dim[0] == y.dim[0] &&
            w.dim[0] == y.dim[1] && x.dim[1] % w.dim[1] == 0;
        for (size_t d = 0; fits && d < 2; d++)
            fits = y.dim[2 + d] <= (x.dim[2 + d] + 2 * padding[d] - dilation[d] * (w.dim[2 + d] - 1) - 1) / step[d] + 1;
        return fits;
    }

    void run(const std::array<void *, 3> &memory, bool rounds) const
    {
        const tensor *const tensors[] = {&x, &w, &y}, &result = *tensors[of.to];
        const int64_t channels = w.dim[1], groups = x.dim[1] / channels, outs = w.dim[0] / groups;
        /* All three in double by rows, x amid its padding: so each lies at strides for the loops below. */
        index4 dims[] = {x.dim, w.dim, y.dim}, strides[3];
        std::vector<double> values[3];
        for (size_t d = 0; d < 2; d++) dims[kind::X][2 + d] += 2 * padding[d];
        for (size_t t = 0; t < 3; t++) {
            const index4 &n = dims[t];
            strides[t] = {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
            values[t].resize(size_t(n[0] * strides[t][0]));
        }
        const auto value = [&](size_t t, const index4 &i) -> double & {
            const auto &[n, c, h, across] = strides[t];
            const int64_t top = t == kind::X ? padding[0] : 0, left = t == kind::X ? padding[1] : 0;
            return values[t].at(size_t(i[0] * n + i[1] * c + (i[2] + top) * h + (i[3] + left) * across));
        };
        for (size_t t = 0; t < 3; t++)
            if (t != of.to)
                for_each(tensors[t]->dim, [&](const index4 &i) {
                    const double read = load(tensors[t]->type, memory[t], tensors[t]->at(i));
                    value(t, i) = rounds ? to_tf32(read) : read;
                });

        const auto &[in, weight, out] = strides;
        const struct { int64_t count, strides[3]; } terms[] = {
            {x.dim[0], {in[0], 0, out[0]}},
            {groups, {channels * in[1], outs * weight[0], outs * out[1]}},
            {outs, {0, weight[0], out[1]}},
            {channels, {in[1], weight[1], 0}},
            {y.dim[2], {step[0] * in[2], 0, out[2]}},
            {w.dim[2], {dilation[0] * in[2], weight[2], 0}},
            {w.dim[3], {dilation[1], 1, 0}},
            {y.dim[3], {step[1], 0, 1}}};
        const size_t a = (of.to + 1) % 3, b = (of.to + 2) % 3;
        std::vector<loop> loops;
        for (const auto &t : terms) loops.push_back({t.count, t.strides[a], t.strides[b], t.strides[of.to]});
        add_products(loops, values[a], values[b], values[of.to]);
        for_each(result.dim, [&](const index4 &i) {
            store(result.type, memory[of.to], result.at(i), value(of.to, i));
        });
    }
};

convolution convolution_of(const cudnnBackendDescriptor &graph)
{
    const cudnnBackendDescriptor &op = graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const kind *k = kinds;
    while (k->type != op.type) k++;
    return convolution(op, *k);
}

const cudnnBackendDescriptor &graph_of(const cudnnBackendDescriptor &plan)
{
    return plan.parts.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

} /* namespace */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = new cudnnContext{current_device, nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return is_stream_of(handle->device, stream) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *descriptor)
{
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
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && !convolution_of(*d).is_possible())
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        d->engine = d->parts.at(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine;
        if (d->engine == ROUNDING && convolution_of(graph_of(*d)).x.type != element::f32)
            return CUDNN_STATUS_NOT_SUPPORTED;
    }
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

/* The engines that the heuristic names, best first. */
static std::vector<int> engines_for(const cudnnBackendDescriptor &heuristic)
{
    if (heuristic.one<int>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK) return {UNORDERED, GREEDY, SERVES};
    if (convolution_of(heuristic.parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)).x.type == element::f32) {
        std::vector<int> refused(40, UNORDERED); /* more than anyone asks for at once */
        refused[0] = ROUNDING, refused[1] = NARROWING, refused[2] = WINOGRAD;
        return refused;
    }
    return {UNORDERED, ROUNDING, REDUCING, FOURIER, WINOGRAD, LARGE_WINOGRAD, GREEDY, SERVES};
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, int attribute, int, int64_t wanted, int64_t *count,
    void *values)
{
    auto *const parts = static_cast<cudnnBackendDescriptor_t *>(values);
    *count = 1;
    switch (attribute) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = 0;
        for (int engine : engines_for(*d)) { /* counts all, and writes those that were asked for */
            if (*count < wanted) *parts[*count] = {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, engine, true, {}, d->parts};
            ++*count;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        *parts[0] = {CUDNN_BACKEND_ENGINE_DESCRIPTOR, d->engine, true, {}, d->parts};
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = d->engine < GREEDY;
        if (*count) *static_cast<int *>(values) = notes[d->engine];
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *static_cast<int64_t *>(values) = d->engine == GREEDY ? TOO_LARGE : WORKSPACE;
        return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_BAD_PARAM;
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const auto ids = pack->all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto data = pack->all<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *workspace = pack->one<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    const convolution c = convolution_of(graph_of(*plan));
    const tensor *const tensors[] = {&c.x, &c.w, &c.y};
    std::array<void *, 3> at = {};
    if (!plan->finalized || !pack->finalized || !workspace || (plan->engine != ROUNDING && plan->engine != SERVES))
        return CUDNN_STATUS_BAD_PARAM;
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < ids.size(); i++)
            if (ids[i] == tensors[t]->id) at[t] = data[i];
        if (!at[t] || reinterpret_cast<uintptr_t>(at[t]) % static_cast<uintptr_t>(tensors[t]->alignment))
            return CUDNN_STATUS_BAD_PARAM;
    }
    const cudaError_t error = enqueue(handle->stream, {"cudnnBackendExecute", [=, rounds = plan->engine == ROUNDING] {
        memset(workspace, 0xff, WORKSPACE);
        c.run(at, rounds);
        return cudaSuccess;
    }});
    return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

/* ---- Found by name ----------------------------------------------------------------------------------------------- */

library_functions &tr_emulator::cudnn_functions()
{
    static library_functions functions = {
#define ENTRY(function) {#function, guarded<function, CUDNN_STATUS_EXECUTION_FAILED>::named(#function)},
        CUDNN_FUNCTIONS(ENTRY)
#undef ENTRY
    };
    return functions;
}

void *tr_emulator::library_open(const char *name)
{
    if (strncmp(name, "libcublasLt.so.", 15) == 0 && !call_fails("libcublasLt")) return &cublaslt_functions();
    if (strcmp(name, "libcudnn.so.9") == 0 && !call_fails("libcudnn")) return &cudnn_functions();
    return nullptr;
}

void *tr_emulator::library_find(void *library, const char *function)
{
    const auto &functions = *static_cast<library_functions *>(library);
    const auto found = functions.find(function);
    return found == functions.end() || call_fails("dlsym") ? nullptr : found->second;
}
