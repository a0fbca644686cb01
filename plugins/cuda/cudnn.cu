/*
 * Convolutions by cuDNN's graph interface, which is opened when the first one comes. A convolution is described by
 * descriptors with attributes: tensors, an operation, a graph of it. For that the heuristic names engines, best first,
 * and in a second mode those that serve for any graph. The first of them is taken that computes as exactly as it was
 * asked, in a fixed order, and takes the graph. What comes of it is kept as a plan.
 */
#include "conv.h"
#include "cudnn_abi.h"
#include "library.h"

#include <vector>

namespace {

struct library {
#define POINTER(function) decltype(&::function) function;
    CUDNN_FUNCTIONS(POINTER)
};

/* NULL: it is not there. */
const library *cudnn()
{
    static const library *const opened = []() -> const library * {
        static library made;
#define ENTRY(function) {#function, &made.function},
        const library_function functions[] = {CUDNN_FUNCTIONS(ENTRY) {nullptr, nullptr}};
        return open_library("libcudnn.so.9", functions, "convolutions have slower kernels") ? &made : nullptr;
    }();
    return opened;
}

/* A descriptor; the first failure stays in `status`, and what comes after it does nothing. */
struct descriptor {
    cudnnBackendDescriptor_t at = nullptr;
    cudnnStatus_t status;

    explicit descriptor(int type) { status = cudnn()->cudnnBackendCreateDescriptor(type, &at); }
    ~descriptor()
    {
        if (at) cudnn()->cudnnBackendDestroyDescriptor(at);
    }
    descriptor(const descriptor &) = delete;
    descriptor &operator=(const descriptor &) = delete;

    void set(int attribute, int type, int64_t count, const void *values)
    {
        if (!status) status = cudnn()->cudnnBackendSetAttribute(at, attribute, type, count, values);
    }
    void set(int attribute, int type, int value) { set(attribute, type, 1, &value); }
    void set(int attribute, int64_t value) { set(attribute, CUDNN_TYPE_INT64, 1, &value); }
    void set(int attribute, const descriptor &of)
    {
        if (!status) status = of.status;
        set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &of.at);
    }
    void finalize()
    {
        if (!status) status = cudnn()->cudnnBackendFinalize(at);
    }
};

/* All that a plan depends on. */
struct shape {
    int64_t device, kind, dtype, alignment;
    conv_sizes sizes;
};

struct plan {
    std::vector<std::unique_ptr<descriptor>> parts; /* they stay as long as the plan that was made of them */
    descriptor *execution = nullptr;                /* NULL: cuDNN has no engine for it */
    int64_t workspace = 0;

    descriptor &add(int type) { return *parts.emplace_back(new descriptor(type)); }
    descriptor &tensor(const shape &s, int64_t id, int64_t n, int64_t c, int64_t h, int64_t w);
    descriptor &operation(const shape &s);
    cudnnStatus_t make(cudnnHandle_t handle, const shape &s, bool tf32);
    cudnnStatus_t ask(cudnnHandle_t handle, int mode, const descriptor &graph, bool exact);
    bool choose(cudnnHandle_t handle, const descriptor &config, bool exact);
};

enum { ID_X = 1, ID_WEIGHT, ID_Y };

int type_of_dtype(int64_t dtype)
{
    return dtype == TR_F32 ? CUDNN_DATA_FLOAT : dtype == TR_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

descriptor &plan::tensor(const shape &s, int64_t id, int64_t n, int64_t c, int64_t h, int64_t w)
{
    descriptor &t = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t dims[] = {n, c, h, w}, strides[] = {h * w * c, 1, w * c, c};
    t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type_of_dtype(s.dtype));
    t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, s.alignment);
    t.finalize();
    return t;
}

descriptor &plan::operation(const shape &s)
{
    static const struct { int type, alpha, x, weight, y; } kinds[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
    const conv_sizes &z = s.sizes;
    const auto &kind = kinds[s.kind];
    int64_t stride[] = {z.stride, z.stride}, padding[] = {z.padding, z.padding}, dilation[] = {z.dilation, z.dilation};
    float one = 1, zero = 0;
    descriptor &how = add(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
    how.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2);
    how.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    how.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    how.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    how.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    how.finalize();
    descriptor &op = add(kind.type);
    op.set(kind.x, tensor(s, ID_X, z.n, z.c, z.h, z.w));
    op.set(kind.weight, tensor(s, ID_WEIGHT, z.k, z.c / z.groups, z.kh, z.kw)); /* fewer channels than x: groups */
    op.set(kind.y, tensor(s, ID_Y, z.n, z.k, z.oh, z.ow));
    op.set(kind.alpha, CUDNN_TYPE_FLOAT, 1, &one); /* beta and how follow alpha */
    op.set(kind.alpha + 1, CUDNN_TYPE_FLOAT, 1, &zero);
    op.set(kind.alpha + 2, how);
    op.finalize();
    return op;
}

/* Does an engine with this numerical note compute otherwise than asked? exact: f32 is not to be rounded on its way into
 * tensor cores. Transforms (Winograd's, Fourier's) lose some digits of any dtype: a result by Winograd with tiles of 4 x 4
 * is some 10 times further from the true one than a sum of products. */
bool refuses(int note, bool exact)
{
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: return exact;
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
    case CUDNN_NUMERICAL_NOTE_FFT:
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: return true;
    default: return note >= CUDNN_NUMERICAL_NOTE_WINOGRAD && note <= CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    }
}

constexpr int64_t MOST_WORKSPACE = 1 << 30;

/* Can the configuration serve? */
bool plan::choose(cudnnHandle_t handle, const descriptor &config, bool exact)
{
    int notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t found = 0, n = 0;
    descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    const library &l = *cudnn();
    if (l.cudnnBackendGetAttribute(config.at, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found,
                                   &engine.at) ||
        l.cudnnBackendGetAttribute(engine.at, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes))
        return false;
    for (int64_t i = 0; i < n && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        if (refuses(notes[i], exact)) return false;
    std::unique_ptr<descriptor> made(new descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    made->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    made->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    made->finalize();
    if (made->status || l.cudnnBackendGetAttribute(made->at, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                   CUDNN_TYPE_INT64, 1, &found, &workspace) ||
        workspace > MOST_WORKSPACE)
        return false;
    execution = parts.emplace_back(std::move(made)).get();
    return true;
}

/* Takes the first engine that serves of those that the heuristic names in a mode, if there is one. */
cudnnStatus_t plan::ask(cudnnHandle_t handle, int mode, const descriptor &graph, bool exact)
{
    enum { ASKED = 32 };
    descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    heuristic.finalize();
    if (heuristic.status) return heuristic.status;
    std::unique_ptr<descriptor> configs[ASKED];
    cudnnBackendDescriptor_t addresses[ASKED];
    int64_t found = 0;
    for (int i = 0; i < ASKED; i++) {
        configs[i].reset(new descriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
        if (configs[i]->status) return configs[i]->status;
        addresses[i] = configs[i]->at;
    }
    cudnnStatus_t status = cudnn()->cudnnBackendGetAttribute(heuristic.at, CUDNN_ATTR_ENGINEHEUR_RESULTS,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, ASKED, &found, addresses);
    /* `found` is how many there are, however few were asked for. */
    for (int64_t i = 0; status == CUDNN_STATUS_SUCCESS && i < found && i < ASKED && !execution; i++)
        if (choose(handle, *configs[i], exact)) parts.push_back(std::move(configs[i]));
    return status;
}

bool is_unsupported(cudnnStatus_t status)
{
    return status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR;
}

/* Says in `execution` whether cuDNN can. For f32 in full the first mode often names engines of tensor cores alone. */
cudnnStatus_t plan::make(cudnnHandle_t handle, const shape &s, bool tf32)
{
    descriptor &op = operation(s), &graph = add(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
    graph.finalize();
    if (graph.status) return graph.status;
    for (int mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        cudnnStatus_t status = ask(handle, mode, graph, s.dtype == TR_F32 && !tf32);
        if (execution || (status && !is_unsupported(status))) return status;
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

plan_table<shape, plan, cudnnHandle_t> &known = *new plan_table<shape, plan, cudnnHandle_t>;

tr_status check(cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS) return TR_OK;
    return host->fail(TR_DEVICE, "cuda: cuDNN: %s: %s", what, cudnn()->cudnnGetErrorString(status));
}

} // namespace

bool cudnn_serves(tr_dtype dtype)
{
    return (dtype == TR_F32 || dtype == TR_F16 || dtype == TR_BF16) && cudnn();
}

tr_status cudnn_convolve(const job &j, conv_kind kind, const conv_sizes &s, tr_dtype dtype, void *x, void *weight,
                         void *y)
{
    for (int64_t size : {s.n, s.c, s.h, s.w, s.k, s.kh, s.kw, s.oh, s.ow})
        if (size == 0) return TR_DECLINED;
    if (!cudnn_serves(dtype)) return TR_DECLINED;
    const shape asked = {j.call.index, kind, dtype, alignment_of({x, weight, y}, 16), s};
    bool tf32;
    TRY(wants_tf32(&tf32));
    std::lock_guard<std::mutex> held(known.lock);
    cudnnHandle_t handle;
    plan *chosen;
    TRY(known.find(
        asked, &handle, &chosen, [](cudnnHandle_t *made) { return check(cudnn()->cudnnCreate(made), "cudnnCreate"); },
        [&](cudnnHandle_t of, plan &made) {
            cudnnStatus_t status = made.make(of, asked, tf32);
            return is_unsupported(status) ? TR_OK : check(status, "choosing how to convolve");
        }));
    if (!chosen->execution) return TR_DECLINED;
    scratch workspace(j, (size_t)chosen->workspace);
    TRY(workspace.status());
    int64_t ids[] = {ID_X, ID_WEIGHT, ID_Y};
    void *data[] = {x, weight, y}, *room = workspace.as<void>();
    descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, data);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &room);
    pack.finalize();
    TRY(check(pack.status, "naming the memory of a convolution"));
    TRY(check(cudnn()->cudnnSetStream(handle, j.stream), "cudnnSetStream"));
    return check(cudnn()->cudnnBackendExecute(handle, chosen->execution->at, pack.at), "cudnnBackendExecute");
}
