/*
 * Products by cuBLASLt, which is opened when the first one comes. What it is asked for a shape is kept as a plan: its
 * descriptors, the algorithm that its heuristic gives, and how much workspace that one wants. It counts in columns, so
 * a row-major c = a b is asked for as c^T = b^T a^T: its A is our b, its rows are our columns.
 */
#include "cublaslt_abi.h"
#include "library.h"
#include "product.h"

#include <stdio.h>

namespace {

struct library {
#define POINTER(function) decltype(&::function) function;
    CUBLASLT_FUNCTIONS(POINTER)
};

/* NULL: it is not there. */
const library *cublaslt()
{
    static const library *const opened = []() -> const library * {
        static library made;
        char name[64];
        snprintf(name, sizeof name, "libcublasLt.so.%d", CUDART_VERSION / 1000);
#define ENTRY(function) {#function, &made.function},
        const library_function functions[] = {CUBLASLT_FUNCTIONS(ENTRY) {nullptr, nullptr}};
        return open_library(name, functions, "products of matrices have slower kernels") ? &made : nullptr;
    }();
    return opened;
}

/* One of cuBLASLt's functions failed: the message names it. */
tr_status check(const library &l, cublasStatus_t status, const char *function)
{
    if (status == CUBLAS_STATUS_SUCCESS) return TR_OK;
    return host->fail(TR_DEVICE, "cuda: %s: %s", function, l.cublasLtGetStatusString(status));
}
/* Not on this card, or not at all. */
bool is_unsupported(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
}
#define CALL(l, function, ...) TRY(check(l, (l).function(__VA_ARGS__), #function))

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* All that an algorithm depends on. */
struct shape {
    int64_t device, dtype, to_dtype, transposed_a, transposed_b, m, n, k, lda, ldb, ldc, ldd, step_a, step_b, step_c,
        step_d, batch, beta, epilogue, aux_ld, alignment, bias_alignment;
};

/* Does an axis lie in memory as neighbours, and the other at one distance? Says which: *ld. */
bool lies(const axis &inner, const axis &outer, int64_t *ld)
{
    if (inner.ndim != 1 || outer.ndim != 1 || (inner.n != 1 && inner.stride[0] != 1)) return false;
    *ld = outer.n == 1 ? inner.n : outer.stride[0];
    return *ld >= inner.n;
}

bool batch_step(const axis &batch, int64_t *step)
{
    *step = batch.n == 1 ? 0 : batch.stride[0];
    return batch.ndim == 1 && *step >= 0;
}

bool has_types(const product &p)
{
    bool small = p.a.dtype == TR_F16 || p.a.dtype == TR_BF16;
    if (!small && p.a.dtype != TR_F32 && p.a.dtype != TR_F64) return false;
    if (p.b.dtype != p.a.dtype || (p.c.dtype != p.a.dtype && !(small && p.c.dtype == TR_F32))) return false;
    if (p.residual.data && p.residual.dtype != p.c.dtype) return false;
    return !p.gelu_input.data || p.gelu_input.dtype == p.c.dtype;
}

/* False: cuBLASLt has no words for it. */
bool shape_of(const job &j, const product &p, shape *s)
{
    memset(s, 0, sizeof *s);
    s->device = j.call.index;
    s->dtype = p.a.dtype;
    s->to_dtype = p.c.dtype;
    s->m = p.b.column.n;
    s->n = p.a.row.n;
    s->k = p.a.column.n;
    s->batch = p.c_batch.n;
    s->beta = p.residual.data || p.accumulate;
    s->epilogue = p.gelu_input.data ? CUBLASLT_EPILOGUE_DGELU
                  : p.bias          ? CUBLASLT_EPILOGUE_BIAS
                                    : CUBLASLT_EPILOGUE_DEFAULT;
    s->alignment = alignment_of({p.a.data, p.b.data, p.c.data, p.residual.data, p.gelu_input.data}, 256);
    if (!has_types(p) || s->m == 0 || s->n == 0 || s->k == 0 || s->batch == 0 || s->batch > INT32_MAX) return false;
    if ((p.residual.data && p.accumulate) || (p.bias && p.gelu_input.data)) return false;
    s->transposed_a = !lies(p.b.column, p.b.row, &s->lda);
    if (s->transposed_a && !lies(p.b.row, p.b.column, &s->lda)) return false;
    s->transposed_b = !lies(p.a.column, p.a.row, &s->ldb);
    if (s->transposed_b && !lies(p.a.row, p.a.column, &s->ldb)) return false;
    if (!lies(p.c.column, p.c.row, &s->ldd) || !batch_step(p.a_batch, &s->step_b) ||
        !batch_step(p.b_batch, &s->step_a) || !batch_step(p.c_batch, &s->step_d))
        return false;
    s->ldc = s->ldd;
    s->step_c = s->step_d;
    if (p.residual.data && (s->batch != 1 || !lies(p.residual.column, p.residual.row, &s->ldc))) return false;
    return !p.gelu_input.data || (s->batch == 1 && lies(p.gelu_input.column, p.gelu_input.row, &s->aux_ld));
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

struct plan {
    const library &l = *cublaslt();
    cublasLtMatmulDesc_t matmul = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t chosen = {};
    bool declined = false; /* cuBLASLt has no algorithm for it */

    plan() = default;
    plan(const plan &) = delete;
    plan &operator=(const plan &) = delete;
    ~plan()
    {
        if (matmul) l.cublasLtMatmulDescDestroy(matmul);
        for (cublasLtMatrixLayout_t layout : {a, b, c, d})
            if (layout) l.cublasLtMatrixLayoutDestroy(layout);
        if (preference) l.cublasLtMatmulPreferenceDestroy(preference);
    }
    tr_status layout(cublasLtMatrixLayout_t *to, int type, bool transposed, int64_t rows, int64_t columns, int64_t ld,
                     int64_t batch, int64_t step);
    tr_status prepare(const shape &s);
    tr_status choose(cublasLtHandle_t handle, const shape &s);
};

int type_of_dtype(int64_t dtype)
{
    return dtype == TR_F64    ? CUBLASLT_R_64F
           : dtype == TR_F32  ? CUBLASLT_R_32F
           : dtype == TR_BF16 ? CUBLASLT_R_16BF
                              : CUBLASLT_R_16F;
}

/* rows, columns: of the operand after transposing. */
tr_status plan::layout(cublasLtMatrixLayout_t *to, int type, bool transposed, int64_t rows, int64_t columns, int64_t ld,
                       int64_t batch, int64_t step)
{
    int32_t count = (int32_t)batch;
    CALL(l, cublasLtMatrixLayoutCreate, to, type, (uint64_t)(transposed ? columns : rows),
         (uint64_t)(transposed ? rows : columns), ld);
    CALL(l, cublasLtMatrixLayoutSetAttribute, *to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    CALL(l, cublasLtMatrixLayoutSetAttribute, *to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
    return TR_OK;
}

tr_status plan::prepare(const shape &s)
{
    int type = type_of_dtype(s.dtype), to_type = type_of_dtype(s.to_dtype);
    bool tf32;
    TRY(wants_tf32(&tf32));
    int compute = s.dtype == TR_F64           ? CUBLAS_COMPUTE_64F
                  : s.dtype == TR_F32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                              : CUBLAS_COMPUTE_32F;
    int32_t of_a = s.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N, of_b = s.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = (uint32_t)s.epilogue;
    CALL(l, cublasLtMatmulDescCreate, &matmul, compute, s.dtype == TR_F64 ? CUBLASLT_R_64F : CUBLASLT_R_32F);
    CALL(l, cublasLtMatmulDescSetAttribute, matmul, CUBLASLT_MATMUL_DESC_TRANSA, &of_a, sizeof of_a);
    CALL(l, cublasLtMatmulDescSetAttribute, matmul, CUBLASLT_MATMUL_DESC_TRANSB, &of_b, sizeof of_b);
    CALL(l, cublasLtMatmulDescSetAttribute, matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (s.aux_ld)
        CALL(l, cublasLtMatmulDescSetAttribute, matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &s.aux_ld,
             sizeof s.aux_ld);
    TRY(layout(&a, type, s.transposed_a, s.m, s.k, s.lda, s.batch, s.step_a));
    TRY(layout(&b, type, s.transposed_b, s.k, s.n, s.ldb, s.batch, s.step_b));
    TRY(layout(&c, to_type, false, s.m, s.n, s.ldc, s.batch, s.step_c));
    return layout(&d, to_type, false, s.m, s.n, s.ldd, s.batch, s.step_d);
}

constexpr uint64_t MOST_WORKSPACE = 32 << 20;

tr_status plan::choose(cublasLtHandle_t handle, const shape &s)
{
    uint32_t alignment = (uint32_t)s.alignment;
    int found = 0;
    CALL(l, cublasLtMatmulPreferenceCreate, &preference);
    CALL(l, cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &MOST_WORKSPACE,
         sizeof MOST_WORKSPACE);
    for (int of : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                   CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        CALL(l, cublasLtMatmulPreferenceSetAttribute, preference, of, &alignment, sizeof alignment);
    cublasStatus_t status =
        l.cublasLtMatmulAlgoGetHeuristic(handle, matmul, a, b, c, d, preference, 1, &chosen, &found);
    /* An epilogue on a single row or column is an invalid value to some versions, rather than not supported. */
    declined = is_unsupported(status) || status == CUBLAS_STATUS_INVALID_VALUE ||
               (status == CUBLAS_STATUS_SUCCESS && (found == 0 || chosen.state != CUBLAS_STATUS_SUCCESS));
    return declined ? TR_OK : check(l, status, "cublasLtMatmulAlgoGetHeuristic");
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* The memory of one call that its plan names; choosing looks at how it is aligned. */
tr_status point(const plan &to, const product &p)
{
    const void *aux = p.gelu_input.data;
    if (p.bias)
        CALL(*cublaslt(), cublasLtMatmulDescSetAttribute, to.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias->data,
             sizeof p.bias->data);
    if (aux)
        CALL(*cublaslt(), cublasLtMatmulDescSetAttribute, to.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
             sizeof aux);
    return TR_OK;
}

plan_table<shape, plan, cublasLtHandle_t> &known = *new plan_table<shape, plan, cublasLtHandle_t>;

} // namespace

tr_status cublaslt_product(const job &j, const product &call)
{
    const library *l = cublaslt();
    shape s;
    if (!l || !shape_of(j, call, &s)) return TR_DECLINED;
    int64_t one[] = {1};
    product p = call;
    /* The bias has c's dtype; without one this stages nothing. */
    staged bias(j, p.bias ? *p.bias : j.out(0), p.bias ? p.c.dtype : j.out(0).dtype, p.bias ? one : nullptr);
    TRY(bias.status());
    if (p.bias) p.bias = &bias.view();
    if (p.bias) s.bias_alignment = alignment_of({p.bias->data}, 256);

    std::lock_guard<std::mutex> held(known.lock);
    cublasLtHandle_t handle;
    plan *chosen;
    TRY(known.find(
        s, &handle, &chosen, [&](cublasLtHandle_t *made) { return check(*l, l->cublasLtCreate(made), "cublasLtCreate"); },
        [&](cublasLtHandle_t of, plan &made) {
            TRY(made.prepare(s));
            TRY(point(made, p));
            return made.choose(of, s);
        }));
    TRY(point(*chosen, p));
    if (chosen->declined) return TR_DECLINED;
    scratch workspace(j, chosen->chosen.workspaceSize);
    TRY(workspace.status());
    float one_f = 1, beta_f = s.beta ? 1 : 0;
    double one_d = 1, beta_d = s.beta ? 1 : 0;
    bool f64 = s.dtype == TR_F64;
    cublasStatus_t status =
        l->cublasLtMatmul(handle, chosen->matmul, f64 ? (void *)&one_d : &one_f, p.b.data, chosen->a, p.a.data,
                          chosen->b, f64 ? (void *)&beta_d : &beta_f, p.residual.data ? p.residual.data : p.c.data,
                          chosen->c, p.c.data, chosen->d, &chosen->chosen.algo, workspace.as<void>(),
                          chosen->chosen.workspaceSize, j.stream);
    /* What the heuristic chose may be refused yet, above all with an epilogue. Nothing has run then. */
    chosen->declined = is_unsupported(status) || status == CUBLAS_STATUS_INVALID_VALUE;
    return chosen->declined ? TR_DECLINED : check(*l, status, "cublasLtMatmul");
}
