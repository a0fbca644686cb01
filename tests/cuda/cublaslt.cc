/*
 * A double of cuBLASLt for the double of CUDA's runtime: reference arithmetic, in double, as an operation of its
 * stream. It refuses what the real one refuses (types that do not fit, epilogues of f64, an auxiliary matrix that is
 * not aligned), an algorithm that was chosen for another shape, memory that is less aligned or a workspace that is
 * smaller than was said, a handle or a stream of another device; it leaves NaN in the workspace.
 * CUDA_EMULATOR="fail=cublasLtMatmul:2" lets the second call fail, as of any function.
 */
#include "library.h"
#include "cublaslt_abi.h"

using namespace tr_emulator;

struct cublasLtContext { int device; };

struct cublasLtMatrixLayout {
    int type;
    uint64_t rows, columns;
    int64_t ld, step;
    int32_t batch;
};

struct cublasLtMatmulDesc {
    int compute, scale;
    int32_t transposed[2];
    uint32_t epilogue;
    const void *bias, *aux;
    int64_t aux_ld;
};

struct cublasLtMatmulPreference {
    uint64_t workspace;
    uint32_t alignment[4]; /* of a, b, c, d */
};

namespace {

/* What the heuristic chose an algorithm for; it fits into one. */
struct choice {
    uint64_t signature, workspace;
    uint32_t alignment[4];
};
static_assert(sizeof(choice) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm has room for it");

element element_of(int type)
{
    return type == CUBLASLT_R_64F   ? element::f64
           : type == CUBLASLT_R_32F ? element::f32
           : type == CUBLASLT_R_16F ? element::f16
                                    : element::bf16;
}

double load_from(const cublasLtMatrixLayout &x, const void *base, int64_t batch, int64_t row, int64_t column)
{
    return load(element_of(x.type), base, batch * x.step + column * x.ld + row);
}

double gelu_slope(double x)
{
    const double c = 0.7978845608028654, t = std::tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

struct multiplication {
    cublasLtMatmulDesc matmul;
    cublasLtMatrixLayout a, b, c, d;

    uint64_t m() const { return d.rows; }
    uint64_t n() const { return d.columns; }
    uint64_t k() const { return matmul.transposed[0] ? a.rows : a.columns; }

    bool is_possible() const
    {
        const bool f64 = a.type == CUBLASLT_R_64F, f32 = a.type == CUBLASLT_R_32F;
        const bool computes = f64 ? matmul.compute == CUBLAS_COMPUTE_64F
            : matmul.compute == CUBLAS_COMPUTE_32F || (f32 && matmul.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
        if (b.type != a.type || c.type != d.type || !computes) return false;
        if (f64 && matmul.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
        return (d.type == a.type || (!f64 && !f32 && d.type == CUBLASLT_R_32F)) &&
            (matmul.epilogue != CUBLASLT_EPILOGUE_DGELU || (matmul.aux && matmul.aux_ld % 8 == 0 &&
                reinterpret_cast<uintptr_t>(matmul.aux) % 16 == 0)) &&
            (matmul.epilogue != CUBLASLT_EPILOGUE_BIAS || matmul.bias);
    }

    bool is_valid() const
    {
        const auto fits = [&](const cublasLtMatrixLayout &x, uint64_t rows, uint64_t columns, bool transposed) {
            if (transposed) std::swap(rows, columns);
            return x.rows == rows && x.columns == columns && x.ld >= int64_t(rows) && x.batch == d.batch;
        };
        return m() && n() && k() && fits(c, m(), n(), false) && fits(d, m(), n(), false) &&
            fits(a, m(), k(), matmul.transposed[0]) && fits(b, k(), n(), matmul.transposed[1]);
    }

    uint64_t signature() const
    {
        uint64_t hash = 1469598103934665603u;
        const auto add = [&](auto... values) { ((hash = (hash ^ uint64_t(values)) * 1099511628211u), ...); };
        for (const auto *x : {&a, &b, &c, &d}) add(x->type, x->rows, x->columns, x->ld, x->step, x->batch);
        add(matmul.compute, matmul.transposed[0], matmul.transposed[1], matmul.epilogue, matmul.aux_ld);
        return hash;
    }

    /* One of the batch, by columns. */
    std::vector<double> operand(const cublasLtMatrixLayout &x, const void *base, int64_t batch) const
    {
        std::vector<double> values;
        for_each<2>({int64_t(x.columns), int64_t(x.rows)}, [&](const auto &i) {
            const double value = load_from(x, base, batch, i[1], i[0]);
            values.push_back(matmul.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? to_tf32(value) : value);
        });
        return values;
    }

    double epilogue(double sum, int64_t row, int64_t column) const
    {
        const element type = element_of(d.type);
        if (matmul.epilogue == CUBLASLT_EPILOGUE_BIAS) return sum + load(type, matmul.bias, row);
        if (matmul.epilogue != CUBLASLT_EPILOGUE_DGELU) return sum;
        return sum * gelu_slope(load(type, matmul.aux, column * matmul.aux_ld + row));
    }

    void run(double alpha, const void *at_a, const void *at_b, double beta, const void *at_c, void *at_d) const
    {
        const auto rows = int64_t(m()), columns = int64_t(n());
        /* How far the next row, and the next column, of op(x) is. */
        const auto strides = [](const cublasLtMatrixLayout &x, bool transposed) {
            return transposed ? std::pair(int64_t(x.rows), int64_t(1)) : std::pair(int64_t(1), int64_t(x.rows));
        };
        const auto [a_row, a_column] = strides(a, matmul.transposed[0]);
        const auto [b_row, b_column] = strides(b, matmul.transposed[1]);
        const std::vector<loop> loops = {
            {columns, 0, b_column, rows}, {int64_t(k()), a_column, b_row, 0}, {rows, a_row, 0, 1}};
        for (int64_t batch = 0; batch < d.batch; batch++) {
            std::vector<double> sums(m() * n());
            add_products(loops, operand(a, at_a, batch), operand(b, at_b, batch), sums);
            for_each<2>({columns, rows}, [&](const auto &i) {
                double sum = alpha * sums[uint64_t(i[0] * rows + i[1])];
                if (beta != 0) sum += beta * load_from(c, at_c, batch, i[1], i[0]);
                store(element_of(d.type), at_d, batch * d.step + i[0] * d.ld + i[1], epilogue(sum, i[1], i[0]));
            });
        }
    }
};

template <typename T>
cublasStatus_t make(T **out, const T &value)
{
    *out = new T(value);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t destroy(T *object)
{
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

/* Sets a field of the value's size. */
template <typename T>
cublasStatus_t set(T *field, const void *value, size_t bytes)
{
    if (bytes != sizeof *field) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

} /* namespace */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return may_allocate() ? make(handle, {current_device}) : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, int type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
    return make(layout, {type, rows, columns, ld, 0, 1});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, int attribute, const void *value,
                                                size_t bytes)
{
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(&layout->batch, value, bytes);
    return set(&layout->step, value, bytes);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmul, int compute, int scale)
{
    return make(matmul, {compute, scale, {}, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) { return destroy(matmul); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul, int attribute, const void *value,
                                              size_t bytes)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&matmul->transposed[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&matmul->transposed[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&matmul->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&matmul->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&matmul->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&matmul->aux_ld, value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return make(preference, {0, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, int attribute,
                                                    const void *value, size_t bytes)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(&preference->workspace, value, bytes);
    return set(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    const multiplication x = {*matmul, *a, *b, *c, *d};
    if (!x.is_valid() || !may_allocate()) return CUBLAS_STATUS_EXECUTION_FAILED; /* a mistake that an own kernel would hide */
    if (matmul->epilogue != CUBLASLT_EPILOGUE_DEFAULT && (x.m() == 1 || x.k() == 1)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!x.is_possible()) return CUBLAS_STATUS_NOT_SUPPORTED;
    /* For some shapes it finds none, or one that is not to be used, as the real one may. */
    *found = x.k() % 11 != 10;
    *results = {};
    results->state = x.k() % 11 == 5 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    if (!*found || results->state != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_SUCCESS;
    choice chosen = {x.signature(), std::min<uint64_t>(preference->workspace, 64 * (x.k() % 3)), {}};
    memcpy(chosen.alignment, preference->alignment, sizeof chosen.alignment);
    memcpy(&results->algo, &chosen, sizeof chosen);
    results->workspaceSize = chosen.workspace;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t of_a, const void *b, cublasLtMatrixLayout_t of_b, const void *beta,
                              const void *c, cublasLtMatrixLayout_t of_c, void *d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream)
{
    const multiplication x = {*matmul, *of_a, *of_b, *of_c, *of_d};
    choice chosen;
    memcpy(&chosen, algo, sizeof chosen);
    const void *const memory[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (reinterpret_cast<uintptr_t>(memory[i]) % chosen.alignment[i]) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (handle->device != current_device || !is_stream_of(current_device, stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
    /* Only now: what the heuristic says is not final, and the memory of the epilogue may be another. */
    if (x.k() % 26 == 0 || !x.is_possible()) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (x.k() % 34 == 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (chosen.signature != x.signature() || chosen.workspace > bytes || (chosen.workspace && !workspace))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    const element scale = element_of(matmul->scale);
    const cudaError_t error = enqueue(stream, {"cublasLtMatmul", [=, times = load(scale, alpha, 0),
        plus = load(scale, beta, 0)] {
        if (bytes) memset(workspace, 0xff, bytes);
        x.run(times, a, b, plus, c, d);
        return cudaSuccess;
    }});
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

library_functions &tr_emulator::cublaslt_functions()
{
    static library_functions functions = {
#define ENTRY(function) {#function, guarded<function, CUBLAS_STATUS_EXECUTION_FAILED>::named(#function)},
        CUBLASLT_FUNCTIONS(ENTRY)
#undef ENTRY
    };
    return functions;
}
