#include "ops/cpu/plan.h"

#include "base/isa.h"
#include "base/log.h"
#include "ops/cpu/conv/conv.h"
#include "ops/onednn/kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- What there is ----------------------------------------------------------------------------------------------- */

/* Those with _BF16 multiply by bf16 dot products (VNNI pairs), those with _AMX by tiles of bf16, the others in f32. */
typedef enum algorithm {
    REFERENCE,
    ONEDNN,
    GEMM,
    GEMM_BF16,
    GEMM_AMX,
    WINOGRAD,
    DIRECT,
    DIRECT_BF16,
} algorithm;

static const char *const names[] = {
    "reference", "oneDNN", "gemm", "gemm bf16", "gemm AMX", "Winograd", "direct", "direct bf16",
};

static tr__gemm_kernel gemm_kernel(algorithm by)
{
#if defined(__x86_64__)
    if (by == GEMM_BF16) return tr__gemm_avx512bf16;
    if (by == GEMM_AMX) return tr__gemm_amx;
#endif
    (void)by;
    return TR__OF_MACHINE(tr__gemm);
}

/* ---- The choice: gemm -------------------------------------------------------------------------------------------- */

enum {
    LEAST_ROWS = 16,      /* with fewer, packing a weight [out, in] does not pay, */
    LEAST_BF16_ROWS = 25, /* or packing b as VNNI pairs */
};

static algorithm own_gemm(tr_dtype a, tr_dtype b, int64_t rows)
{
    if (a != TR_BF16 || (b != TR_BF16 && b != TR_F32) || rows < LEAST_BF16_ROWS) return GEMM;
    return tr__has_amx() ? GEMM_AMX : tr__uses_bf16_dot() ? GEMM_BF16 : GEMM;
}

/* Whether our gemm does in one pass what oneDNN takes several for. */
static bool fuses(const tr_op_call *call, const tr__gemm *p)
{
    bool sums_bias = call->op == tr__op(linear_grad_weight) && call->n_outputs > 1 && call->outputs[1];
    return sums_bias || tr__gemm_activates(p) || p->residual.data;
}

/* With AVX2 or AVX-512 our gemm is as fast as oneDNN's sgemm at its best, faster on gradients of weights, and fuses
 * biases, residuals, activations and the gradients of biases. Without matrix units, oneDNN's bf16 is slower than our f32
 * (80 against 120 GFLOP/s on a Sapphire Rapids), and than our bf16 where there are instructions for it. With matrix units (AMX)
 * ours computes what it fuses, and gradients of the weights of convolutions; all else if TRIREME_ISA names amx. Its results are
 * tested, but nobody has timed it on such a machine: so oneDNN keeps the plain products. (Attention has no rival: its kernel for
 * AMX runs wherever there is AMX, for 16 queries and more, see attention.c.) */
static algorithm choose_gemm(const tr_op_call *call, const tr__gemm *p, bool onednn)
{
    if (p->a.dtype == TR_F64) return REFERENCE;
    algorithm own = own_gemm(p->a.dtype, p->b.dtype, p->a.row.n);
    bool own_units = own == GEMM_AMX && (fuses(call, p) || tr__isa_allowed() == TR__ISA_AMX);
    bool matrix_units = p->a.dtype == TR_BF16 && !own_units && tr__onednn_has_matrix_units();
    bool packs_well = tr__axis_contiguous(&p->b.column) || p->a.row.n >= LEAST_ROWS;
    if (tr__has_avx2() && !matrix_units && packs_well) return own;
    if (tr__gemm_activates(p)) return REFERENCE; /* which runs the activation and the gemm as two ops */
    return onednn && tr__onednn_takes(p) ? ONEDNN : own;
}

/* ---- The choice: convolutions ------------------------------------------------------------------------------------ */

enum {
    WINOGRAD_TILES = 16,  /* with fewer, transforming the weight does not pay */
    FEW_CHANNELS = 8,     /* most channels of x for a direct convolution, */
    LEAST_RUN = 3,        /* least numbers in a row of taps, */
    LEAST_TAPS = 64,      /* and in all taps, where outputs of many channels are limited by memory */
    LEAST_CHANNELS = 16,  /* fewer leave the gemm microkernel's tiles half empty */
};

/* 3 x 3 taps, whole vectors of channels, and outputs that fill their tiles so far that a third of the work is saved. */
static bool suits_winograd(const tr__conv2d *s)
{
    if (s->kh != 3 || s->kw != 3 || s->stride != 1 || s->dilation != 1 || s->groups != 1) return false;
    if (s->c == 0 || s->k == 0 || s->c % TR__WINOGRAD_CHANNELS || s->k % TR__WINOGRAD_CHANNELS) return false;
    int64_t tiles = ((s->oh + 3) / 4) * ((s->ow + 3) / 4);
    return s->n * tiles >= WINOGRAD_TILES && 9 * s->oh * s->ow >= 36 * tiles * 3 / 2;
}

/* Few channels in. Where bf16 is multiplied by dot products, oneDNN's bf16 convolutions take half as long as these,
 * which compute in f32; its gradients of weights do not. */
static bool suits_direct(const tr_op_call *call, const tr__conv2d *s)
{
    if (call->op == tr__op(conv2d_grad_input) || s->groups != 1 || s->dilation != 1) return false;
    if (!s->n || !s->oh || !s->ow) return false;
    if (s->c > FEW_CHANNELS || s->kw * s->c < LEAST_RUN || s->k == 0) return false;
    const tr__direct_kernels *kernels = tr__direct_kernels_for(s);
    if (s->k < kernels->panel) return true;
    if (s->k % kernels->vector) return false;
    if (call->op == tr__op(conv2d_grad_weight)) return true;
    return s->kh * s->kw * s->c >= LEAST_TAPS && !(call->outputs[0]->dtype == TR_BF16 && tr__uses_bf16_dot());
}

/* One tap without padding, and gradients of weights, for which oneDNN has no fast kernel channels-last. */
static bool suits_gemm(const tr_op_call *call, const tr__conv2d *s)
{
    if (!tr__has_avx2() || s->groups != 1 || s->dilation != 1) return false;
    if (s->c < LEAST_CHANNELS || s->k < LEAST_CHANNELS) return false;
    return (s->kh == 1 && s->kw == 1 && s->padding == 0) || call->op == tr__op(conv2d_grad_weight);
}

static algorithm choose_conv(const tr_op_call *call, const tr__conv2d *s, bool onednn)
{
    bool of_weight = call->op == tr__op(conv2d_grad_weight);
    tr_dtype a = call->inputs[0]->dtype, b = call->inputs[1]->dtype, out = call->outputs[0]->dtype;
    if (out == TR_F64) return REFERENCE;
    /* Gradients of weights are not oneDNN's strength, with matrix units or without. */
    if (onednn && !of_weight && out == TR_BF16 && tr__onednn_has_matrix_units()) return ONEDNN;
    if (suits_winograd(s)) return WINOGRAD;
    if (suits_direct(call, s)) {
        bool pairs = a == TR_BF16 && s->ow % 2 == 0 && s->k % TR__VNNI_CHANNELS == 0;
        return of_weight && pairs && tr__uses_bf16_dot() ? DIRECT_BF16 : DIRECT;
    }
    if (suits_gemm(call, s)) return own_gemm(a, b, of_weight ? s->k : s->n * s->oh * s->ow);
    return onednn ? ONEDNN : REFERENCE;
}

/* ---- The plans that are kept ------------------------------------------------------------------------------------- */

enum { NUMBERS = 16, SLOTS = 2048, PROBES = 8 };

/* Never changed or freed once it is in the table, but for what oneDNN says when it is asked for the first time. */
typedef struct plan {
    int64_t key[NUMBERS];    /* all that the choice depends on */
    algorithm first, second; /* the second: where oneDNN, the first, has only a slow reference implementation */
    atomic_bool declined;
} plan;

/* Process-wide. Shapes beyond what it holds are planned at each call. */
static _Atomic(plan *) plans[SLOTS];

static bool is_conv(const tr_op_call *call)
{
    return call->op == tr__op(conv2d) || call->op == tr__op(conv2d_grad_input) || call->op == tr__op(conv2d_grad_weight);
}

/* What is looked up for a call: s is its convolution, or else p its gemm. */
static plan key_of(const tr_op_call *call, const tr__conv2d *s, const tr__gemm *p)
{
    if (p)
        return (plan){.key = {call->op - tr__ops, p->a.dtype, p->b.dtype, p->c.dtype, p->a.row.n, p->a.column.n,
            p->b.column.n, p->c_batch.n, tr__gemm_activates(p), fuses(call, p), tr__axis_contiguous(&p->b.column),
            tr__onednn_takes(p)}};
    plan made = {.key = {call->op - tr__ops,
        call->inputs[0]->dtype | call->inputs[1]->dtype << 8 | call->outputs[0]->dtype << 16}};
    _Static_assert(sizeof *s <= sizeof made.key - 2 * sizeof *made.key, "the sizes of a convolution fit a key");
    memcpy(made.key + 2, s, sizeof *s);
    return made;
}

static size_t slot_of(const plan *p)
{
    uint64_t hash = 0;
    for (int i = 0; i < NUMBERS; i++) hash = (hash ^ (uint64_t)p->key[i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 32);
}

static bool same(const plan *a, const plan *b)
{
    return memcmp(a->key, b->key, sizeof a->key) == 0;
}

static plan *find(const plan *wanted)
{
    size_t first = slot_of(wanted);
    for (size_t i = first; i < first + PROBES; i++) {
        plan *p = atomic_load_explicit(&plans[i % SLOTS], memory_order_acquire);
        if (!p || same(p, wanted)) return p;
    }
    return NULL;
}

/* The plan in the table, another thread's if that was faster; made itself where there is no room. */
static plan *keep(plan *made, const tr_op_call *call)
{
    const tr_tensor *y = call->outputs[0];
    tr__log(TR_LOG_DEBUG, "plan: %s to %s %s: %s", call->op->name, tr_dtype_name(y->dtype), TR__TEXT(y->shape),
        names[made->first]);
    plan *copy = malloc(sizeof *copy);
    if (!copy) return made;
    *copy = *made;
    size_t first = slot_of(made);
    for (size_t i = first; i < first + PROBES; i++) {
        plan *there = NULL;
        if (atomic_compare_exchange_strong(&plans[i % SLOTS], &there, copy)) return copy;
        if (!same(there, made)) continue;
        free(copy);
        return there;
    }
    free(copy);
    return made;
}

static algorithm current(const plan *p)
{
    return atomic_load_explicit(&p->declined, memory_order_relaxed) ? p->second : p->first;
}

const char *tr__plan_name(const tr_op_call *call)
{
    if (tr__cpu_kernels[call->op - tr__ops] != tr__planned || !call->outputs[0]) return NULL; /* or the gradient of a bias alone */
    plan wanted;
    if (is_conv(call)) {
        tr__conv2d s = tr__conv2d_of(call);
        wanted = key_of(call, &s, NULL);
    } else {
        tr__gemm p = tr__gemm_of(call);
        wanted = key_of(call, NULL, &p);
    }
    const plan *found = find(&wanted);
    return found ? names[current(found)] : NULL;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static tr_status run_conv(tr_op_call *call, const tr__conv2d *s, algorithm by)
{
    TR_SCOPE;
    if (by == WINOGRAD) TR__TRY(tr__winograd_conv(call, s));
    else if (by == DIRECT || by == DIRECT_BF16) TR__TRY(tr__direct_conv(call, s, by == DIRECT_BF16));
    else TR__TRY(tr__conv_gemm(call, s, gemm_kernel(by)));
    if (call->op != tr__op(conv2d_grad_weight) || !call->outputs[1]) return TR_OK;
    const tr_conv2d_attrs *attrs = call->attrs;
    return tr__sum_onto(call->inputs[0], TR__CONV2D_PIXELS, call->outputs[1], attrs->accumulate_bias);
}

static tr_status run(tr_op_call *call, const tr__conv2d *s, const tr__gemm *p, algorithm by)
{
    if (by == REFERENCE) return TR_DECLINED;
    if (by == ONEDNN) return s ? tr__onednn_conv(call) : tr__onednn_matmul(call, p);
    return s ? run_conv(call, s, by) : tr__cpu_gemm(call, p, gemm_kernel(by));
}

/* As planned, or as is planned now. */
static tr_status run_planned(tr_op_call *call, const tr__conv2d *s, const tr__gemm *p)
{
    plan made = key_of(call, s, p), *kept = find(&made);
    if (!kept) {
        made.first = s ? choose_conv(call, s, true) : choose_gemm(call, p, true);
        made.second = s ? choose_conv(call, s, false) : choose_gemm(call, p, false);
        kept = keep(&made, call);
    }
    algorithm by = current(kept);
    tr_status status = run(call, s, p, by);
    if (status != TR_DECLINED || by != ONEDNN) return status;
    atomic_store(&kept->declined, true);
    return run(call, s, p, kept->second);
}

tr_status tr__planned(tr_op_call *call)
{
    if (!call->outputs[0]) /* the gradient of a bias alone */
        return is_conv(call) ? TR_DECLINED : tr__bias_gradient(call);
    if (is_conv(call)) {
        tr__conv2d s = tr__conv2d_of(call);
        return run_planned(call, &s, NULL);
    }
    tr__gemm p = tr__gemm_of(call);
    return run_planned(call, NULL, &p);
}
