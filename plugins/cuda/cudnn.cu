/*
 * cuDNN's graph interface, opened when its first user comes. What is to be computed is described by descriptors with
 * attributes: tensors, operations, a graph of them. For that the heuristic names engines, best first, and in a second
 * mode those that serve for any graph. The first of them is taken that computes as exactly as it was asked, in a fixed
 * order, and takes the graph; of one operation's engines those come last that compile a kernel first, which takes up to
 * seconds. What comes of it is a plan.
 */
#include "cudnn_plan.h"

#include <stdio.h>

const cudnn_library *cudnn()
{
    static const cudnn_library *const opened = []() -> const cudnn_library * {
        static cudnn_library made;
#define ENTRY(function) {#function, &made.function},
        const library_function functions[] = {CUDNN_FUNCTIONS(ENTRY) {nullptr, nullptr}};
        return open_library("libcudnn.so.9", functions, "convolutions and attention have slower kernels") ? &made : nullptr;
    }();
    return opened;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

/* Why a call for a descriptor failed, for who reads the log; the call that this is for just has no engine then. */
static cudnnStatus_t noted(cudnnStatus_t status, int type, int attribute)
{
    char why[256] = "", text[512];
    if (!status || !host->log) return status;
    cudnn()->cudnnGetLastErrorString(why, sizeof why);
    snprintf(text, sizeof text, "cuda: cuDNN: descriptor %d, attribute %d: %s: %s", type, attribute,
             cudnn()->cudnnGetErrorString(status), why);
    host->log(TR_LOG_DEBUG, text);
    return status;
}

descriptor::descriptor(int of_type) : type(of_type)
{
    status = noted(cudnn()->cudnnBackendCreateDescriptor(type, &at), type, -1);
}

descriptor::~descriptor()
{
    if (at) cudnn()->cudnnBackendDestroyDescriptor(at);
}

void descriptor::set(int attribute, int value_type, int64_t count, const void *values)
{
    if (!status)
        status = noted(cudnn()->cudnnBackendSetAttribute(at, attribute, value_type, count, values), type, attribute);
}

void descriptor::set(int attribute, const std::vector<const descriptor *> &of)
{
    std::vector<cudnnBackendDescriptor_t> addresses;
    for (const descriptor *part : of) {
        if (!status) status = part->status;
        addresses.push_back(part->at);
    }
    set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)addresses.size(), addresses.data());
}

void descriptor::finalize()
{
    if (!status) status = noted(cudnn()->cudnnBackendFinalize(at), type, -1);
}

int cudnn_type_of(int64_t dtype)
{
    return dtype == TR_F32 ? CUDNN_DATA_FLOAT : dtype == TR_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

descriptor &cudnn_plan::tensor(int64_t id, int type, const int64_t *dims, const int64_t *strides, int64_t alignment,
                               tensor_kind kind)
{
    descriptor &t = add(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool yes = true;
    t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
    if (kind == tensor_kind::INNER) t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (kind == tensor_kind::NUMBER) t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    t.finalize();
    return t;
}

/* ---- Engines ---------------------------------------------------------------------------------------------------- */

/* Does an engine with this numerical note compute otherwise than asked? exact: f32 is not to be rounded on its way into
 * tensor cores. Transforms (Winograd's, Fourier's) lose some digits of any dtype: a result by Winograd with tiles of 4 x 4
 * is some 10 times further from the true one than a sum of products. */
static bool refuses(int note, bool exact)
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

static constexpr int64_t MOST_WORKSPACE = 1 << 30;

/* Does the engine compile its kernel when the plan is made? */
static bool compiles(const descriptor &engine)
{
    int notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t n = 0;
    if (cudnn()->cudnnBackendGetAttribute(engine.at, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                          CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &n, notes))
        return false;
    for (int64_t i = 0; i < n && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
        if (notes[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) return true;
    return false;
}

/* Can the configuration serve? Asked of engines that compile, or of the others, which all are where those serve best. */
bool cudnn_plan::choose(cudnnHandle_t handle, const descriptor &config, bool exact, bool compiling)
{
    int notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t found = 0, n = 0;
    descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    const cudnn_library &l = *cudnn();
    if (l.cudnnBackendGetAttribute(config.at, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &found,
                                   &engine.at) ||
        (!fused && compiles(engine)) != compiling ||
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
cudnnStatus_t cudnn_plan::ask(cudnnHandle_t handle, int mode, const descriptor &graph, bool exact)
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
    for (bool compiling : {false, true})
        for (int64_t i = 0; status == CUDNN_STATUS_SUCCESS && i < found && i < ASKED && !execution; i++)
            if (choose(handle, *configs[i], exact, compiling)) parts.push_back(std::move(configs[i]));
    return status;
}

bool is_unsupported(cudnnStatus_t status)
{
    return status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR;
}

/* For f32 in full the first mode often names engines of tensor cores alone. */
cudnnStatus_t cudnn_plan::make(cudnnHandle_t handle, const std::vector<const descriptor *> &operations, bool exact)
{
    descriptor &graph = add(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
    graph.finalize();
    if (graph.status) return graph.status;
    fused = operations.size() > 1;
    for (int mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        cudnnStatus_t status = ask(handle, mode, graph, exact);
        if (execution || (status && !is_unsupported(status))) return status;
    }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

tr_status check_cudnn(cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS) return TR_OK;
    return host->fail(TR_DEVICE, "cuda: cuDNN: %s: %s", what, cudnn()->cudnnGetErrorString(status));
}

tr_status create_cudnn(cudnnHandle_t *made)
{
    return check_cudnn(cudnn()->cudnnCreate(made), "cudnnCreate");
}

tr_status run_plan(const job &j, cudnnHandle_t handle, const cudnn_plan &plan, int64_t n, const int64_t *ids,
                   void *const *data)
{
    scratch workspace(j, (size_t)plan.workspace);
    TRY(workspace.status());
    void *room = workspace.as<void>();
    descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &room);
    pack.finalize();
    TRY(check_cudnn(pack.status, "naming the memory of a call"));
    TRY(check_cudnn(cudnn()->cudnnSetStream(handle, j.stream), "cudnnSetStream"));
    return check_cudnn(cudnn()->cudnnBackendExecute(handle, plan.execution->at, pack.at), "cudnnBackendExecute");
}
