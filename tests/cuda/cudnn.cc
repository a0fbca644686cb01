/*
 * A double of cuDNN's graph interface for convolutions and attention, and how the doubles of libraries are found by name. A
 * descriptor is what has been set in it, by value. The heuristic names engines of which most must not be taken, by
 * their numerical notes or for their workspace. As with the real one, what adds f32 in
 * full and in a fixed order is named in the fallback mode alone. One that compiles comes first, and must not be taken but
 * for f32 with strides of 5, where there is no other. A plan must not go before the graphs that were captured with it, nor be made
 * where memory may not be allocated. CUDA_EMULATOR="fail=cudnnBackendExecute:2" lets
 * the second call fail, as of any function; of "libcudnn" or "libcublasLt" the library is not found, of "dlsym" a
 * function of it.
 */
#include "cudnn_double.h"

using namespace tr_emulator;

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

namespace {

enum : int64_t { WORKSPACE = 192, TOO_LARGE = int64_t(2) << 30 };

enum { COMPILED_STRIDE = 5 };
/* To run another than ROUNDING, which takes no graph of 16-bit types, SERVES, which has no numerical note, or COMPILES for
 * its stride and for attention, is a failure; for attention all others are. */
enum { UNORDERED, ROUNDING, NARROWING, REDUCING, FOURIER, WINOGRAD, LARGE_WINOGRAD, GREEDY, COMPILES, SERVES };
const int notes[] = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
    CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13};

size_t size_of(int type)
{
    if (type == CUDNN_TYPE_BOOLEAN) return 1;
    return type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR ? 8 : 4;
}

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
    cudnn_tensor x, w, y;
    std::vector<int64_t> step, padding, dilation;
    float beta;

    convolution(const cudnnBackendDescriptor &op, const kind &k)
        : of(k), x(op.part(k.x)), w(op.part(k.w)), y(op.part(k.y)), beta(op.one<float>(k.alpha + 1))
    {
        const cudnnBackendDescriptor &how = op.part(k.alpha + 2);
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
        const cudnn_tensor *const tensors[] = {&x, &w, &y}, &result = *tensors[of.to];
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

bool is_convolution(const cudnnBackendDescriptor &graph)
{
    const int type = graph.part(CUDNN_ATTR_OPERATIONGRAPH_OPS).type;
    return std::any_of(kinds, std::end(kinds), [&](const kind &k) { return k.type == type; });
}

convolution convolution_of(const cudnnBackendDescriptor &graph)
{
    const cudnnBackendDescriptor &op = graph.part(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const kind *k = kinds;
    while (k->type != op.type) k++;
    return convolution(op, *k);
}

const cudnnBackendDescriptor &graph_of(const cudnnBackendDescriptor &plan)
{
    return plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

} /* namespace */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    if (!may_allocate()) return CUDNN_STATUS_EXECUTION_FAILED;
    *handle = new cudnnContext{current_device, nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return is_stream_of(handle->device, stream) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

size_t cudnnGetVersion()
{
    return 91900;
}

void cudnnGetLastErrorString(char *text, size_t size)
{
    snprintf(text, size, "the double says no more");
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    if (status == CUDNN_STATUS_SUCCESS) return "CUDNN_STATUS_SUCCESS";
    return status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *descriptor)
{
    *descriptor = new cudnnBackendDescriptor{type, 0, false, {}, {}, nullptr};
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
        const auto *parts = static_cast<const cudnnBackendDescriptor_t *>(values);
        d->parts[attribute].clear();
        for (int64_t i = 0; i < count; i++) {
            if (!parts[i]->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
            d->parts[attribute].push_back(*parts[i]);
        }
        return CUDNN_STATUS_SUCCESS;
    }
    const char *from = static_cast<const char *>(values);
    d->values[attribute].assign(from, from + static_cast<size_t>(count) * size_of(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR &&
        !(is_convolution(*d) ? convolution_of(*d).is_possible() : is_attention(*d)))
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        if (!may_allocate()) return CUDNN_STATUS_EXECUTION_FAILED;
        d->life = std::make_shared<char>();
        d->engine = d->part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine;
        if (d->engine == ROUNDING && is_convolution(graph_of(*d)) && convolution_of(graph_of(*d)).x.type != element::f32)
            return CUDNN_STATUS_NOT_SUPPORTED;
    }
    d->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

/* Of attention's engines the first is to serve, and it compiles. */
static bool must_compile(const cudnnBackendDescriptor &graph)
{
    return !is_convolution(graph) || convolution_of(graph).step[0] == COMPILED_STRIDE;
}

/* The engines that the heuristic names, best first. */
static std::vector<int> engines_for(const cudnnBackendDescriptor &heuristic)
{
    const cudnnBackendDescriptor &graph = heuristic.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (heuristic.one<int>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK) {
        if (must_compile(graph)) return {COMPILES};
        return {COMPILES, UNORDERED, GREEDY, SERVES};
    }
    if (is_convolution(graph) && convolution_of(graph).x.type == element::f32) {
        std::vector<int> refused(40, UNORDERED); /* more than anyone asks for at once */
        refused[0] = ROUNDING, refused[1] = NARROWING, refused[2] = WINOGRAD;
        return refused;
    }
    return {COMPILES, UNORDERED, ROUNDING, REDUCING, FOURIER, WINOGRAD, LARGE_WINOGRAD, GREEDY, SERVES};
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
            if (*count < wanted) *parts[*count] = {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, engine, true, {}, d->parts, nullptr};
            ++*count;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        *parts[0] = {CUDNN_BACKEND_ENGINE_DESCRIPTOR, d->engine, true, {}, d->parts, nullptr};
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = d->engine < GREEDY;
        if (*count) *static_cast<int *>(values) = notes[d->engine];
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        *count = d->engine == COMPILES;
        if (*count) *static_cast<int *>(values) = CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
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
    const cudnnBackendDescriptor &graph = graph_of(*plan);
    const int engine = plan->engine;
    const bool may = engine == COMPILES ? must_compile(graph)
                                        : is_convolution(graph) && (engine == ROUNDING || engine == SERVES);
    if (!plan->finalized || !pack->finalized || !workspace || !may) return CUDNN_STATUS_BAD_PARAM;
    std::vector<cudnn_tensor> tensors;
    if (is_convolution(graph)) {
        const convolution c = convolution_of(graph);
        tensors = {c.x, c.w, c.y};
    } else tensors = tensors_of_attention(graph);
    std::map<int64_t, void *> at;
    std::map<int64_t, double> numbers; /* read now, as the caller's memory is soon another's */
    for (const cudnn_tensor &t : tensors) {
        const auto found = std::find(ids.begin(), ids.end(), t.id);
        if (found == ids.end()) return CUDNN_STATUS_BAD_PARAM;
        void *const address = data.at(size_t(found - ids.begin()));
        if (t.is_number) numbers[t.id] = load(t.type, address, 0);
        else at[t.id] = address;
        if (!address || (!t.is_number && reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(t.alignment)))
            return CUDNN_STATUS_BAD_PARAM;
    }
    const bool rounds = engine == ROUNDING, captured = is_captured(handle->stream);
    const std::weak_ptr<char> life = plan->life;
    const cudaError_t error = enqueue(handle->stream, {"cudnnBackendExecute", [=] {
        if (captured && life.expired()) {
            describe_failure("a graph has a plan of cuDNN's that is gone");
            return cudaErrorIllegalAddress;
        }
        memset(workspace, 0xff, WORKSPACE);
        if (is_convolution(graph))
            convolution_of(graph).run({at.at(tensors[0].id), at.at(tensors[1].id), at.at(tensors[2].id)}, rounds);
        else compute_attention(graph, at, numbers);
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
