/*
 * One step of each optimizer, over a run of parameters that lie side by side in an arena: one launch, in which a thread
 * reads and writes each number once. The formulas stand in src/optim/RULE.c. P is the parameters' type, S the one that
 * is computed in and the states', unless these are bf16 (src/optim/bf16_state.h); constants are computed in double and
 * rounded to S once.
 *
 * A rule is a struct for S, made of the step's attributes, whose operator() gets a parameter x, its gradient g and its
 * states s, and returns what becomes of x.
 */
#include "families.h"
#include "graph.h"
#include "random.h"
#include "thread_group.h"

namespace {

constexpr int LR_AND_DECAY = 2; /* settings that precede a rule's own */
constexpr int BF16_STATE = 7;   /* the last setting */

double own(const tr_step_attrs &a, int i)
{
    return a.settings[LR_AND_DECAY + i];
}

/* -1, 0 or 1; NaN of NaN, which would be gone without a trace else. */
template <class S> __device__ S sign_of(S x)
{
    return x != x ? x : (S)((x > S(0)) - (x < S(0)));
}

template <class S> struct sgd {
    S lr, decay, old, fresh, ahead, by;
    bool moves; /* there is momentum */
    sgd(const tr_step_attrs &a, bool has_state)
        : lr((S)a.lr), decay((S)a.weight_decay), old((S)(a.step == 1 ? 0 : own(a, 0))),
          fresh((S)(a.step == 1 ? 1 : 1 - own(a, 1))), ahead((S)own(a, 2) /* Nesterov's */),
          by(ahead != S(0) ? (S)own(a, 0) : S(1)), moves(has_state) {}
    __device__ S operator()(S x, S g, S *s, S) const
    {
        g += decay * x;
        if (!moves) return x - lr * g;
        s[0] = old * s[0] + fresh * g;
        return x - lr * (ahead * g + by * s[0]);
    }
};

/* Adam's moments, and the coupled and the decoupled decay. */
template <class S> struct moments_of {
    S added, keep, rest1, beta2, rest2, eps;
    moments_of(const tr_step_attrs &a, bool decoupled)
        : added((S)(decoupled ? 0 : a.weight_decay)), keep((S)(1 - (decoupled ? a.lr * a.weight_decay : 0))),
          rest1((S)(1 - own(a, 0))), beta2((S)own(a, 1)), rest2((S)(1 - own(a, 1))), eps((S)own(a, 2))
    {
    }
    __device__ S move(S x, S g, S *s) const
    {
        g += added * x;
        s[0] = s[0] + (g - s[0]) * rest1;
        s[1] = s[1] * beta2 + g * g * rest2;
        return g;
    }
};

/* Adam and AdamW, and with a third state AMSGrad. */
template <class S> struct adam {
    moments_of<S> moments;
    S step, scale;
    bool holds_most;
    adam(const tr_step_attrs &a, bool has_third)
        : moments(a, own(a, 3) != 0), step((S)(a.lr / (1 - pow(own(a, 0), (double)a.step)))),
          scale((S)(1 / sqrt(1 - pow(own(a, 1), (double)a.step)))), holds_most(has_third) {}
    __device__ S operator()(S x, S g, S *s, S) const
    {
        moments.move(x, g, s);
        S w = s[1];
        if (holds_most) w = s[2] = s[2] > w ? s[2] : w;
        return x * moments.keep - step * s[0] / (sqrt(w) * scale + moments.eps);
    }
};

template <class S> struct adadelta {
    S lr, decay, rho, rest, eps;
    adadelta(const tr_step_attrs &a, bool)
        : lr((S)a.lr), decay((S)a.weight_decay), rho((S)own(a, 0)), rest((S)(1 - own(a, 0))), eps((S)own(a, 1)) {}
    __device__ S operator()(S x, S g, S *s, S) const
    {
        g += decay * x;
        s[0] = s[0] * rho + g * g * rest;
        S d = sqrt(s[1] + eps) / sqrt(s[0] + eps) * g;
        s[1] = s[1] * rho + d * d * rest;
        return x - lr * d;
    }
};

template <class S> struct adagrad {
    S lr, decay, eps;
    adagrad(const tr_step_attrs &a, bool)
        : lr((S)(a.lr / (1 + ((double)a.step - 1) * own(a, 0)))), decay((S)a.weight_decay), eps((S)own(a, 1)) {}
    __device__ S operator()(S x, S g, S *s, S) const
    {
        g += decay * x;
        s[0] = s[0] + g * g;
        return x - lr * (g / (sqrt(s[0]) + eps));
    }
};

template <class S> struct adamax {
    S step, decay, rest1, beta2, eps;
    adamax(const tr_step_attrs &a, bool)
        : step((S)(a.lr / (1 - pow(own(a, 0), (double)a.step)))), decay((S)a.weight_decay), rest1((S)(1 - own(a, 0))),
          beta2((S)own(a, 1)), eps((S)own(a, 2)) {}
    __device__ S operator()(S x, S g, S *s, S) const
    {
        g += decay * x;
        S size = (g < S(0) ? -g : g) + eps, old = s[1] * beta2;
        s[0] = s[0] + (g - s[0]) * rest1;
        s[1] = old > size ? old : size;
        return x - step * (s[0] / s[1]);
    }
};

template <class S> struct lion {
    S lr, keep, beta1, rest1, beta2, rest2;
    lion(const tr_step_attrs &a, bool)
        : lr((S)a.lr), keep((S)(1 - a.lr * a.weight_decay)), beta1((S)own(a, 0)), rest1((S)(1 - own(a, 0))),
          beta2((S)own(a, 1)), rest2((S)(1 - own(a, 1)))
    {
    }
    __device__ S operator()(S x, S g, S *s, S) const
    {
        S way = s[0] * beta1 + g * rest1;
        s[0] = s[0] * beta2 + g * rest2;
        return x * keep - lr * sign_of(way);
    }
};

template <class S> struct rprop {
    S decrease, increase, least, most, lr;
    bool first;
    rprop(const tr_step_attrs &a, bool)
        : decrease((S)own(a, 0)), increase((S)own(a, 1)), least((S)own(a, 2)), most((S)own(a, 3)), lr((S)a.lr),
          first(a.step == 1)
    {
    }
    __device__ S operator()(S x, S g, S *s, S) const
    {
        S same = g * s[0], size = (first ? lr : s[1]) * (same > S(0) ? increase : same < S(0) ? decrease : S(1));
        size = size < least ? least : size > most ? most : size;
        g = same < S(0) ? S(0) : g;
        s[0] = g;
        s[1] = size;
        return x - size * sign_of(g);
    }
};

template <class S> struct nadam {
    moments_of<S> moments;
    S of_g, of_m, scale;
    static double mu(const tr_step_attrs &a, double t) { return own(a, 0) * (1 - 0.5 * pow(0.96, t * own(a, 3))); }
    nadam(const tr_step_attrs &a, bool) : moments(a, own(a, 4) != 0)
    {
        double now = mu(a, (double)a.step), next = mu(a, (double)a.step + 1);
        of_g = (S)(a.lr * (1 - now) / (1 - a.factor));
        of_m = (S)(a.lr * next / (1 - a.factor * next));
        scale = (S)(1 / sqrt(1 - pow(own(a, 1), (double)a.step)));
    }
    __device__ S operator()(S x, S g, S *s, S) const
    {
        g = moments.move(x, g, s);
        return x * moments.keep - (of_g * g + of_m * s[0]) / (sqrt(s[1]) * scale + moments.eps);
    }
};

/* What rectifies the variance is 0 as long as there is none. */
template <class S> struct radam {
    moments_of<S> moments;
    S step, rectified;
    radam(const tr_step_attrs &a, bool) : moments(a, own(a, 3) != 0)
    {
        double beta2 = own(a, 1), t = (double)a.step, rest = 1 - pow(beta2, t);
        double n = 2 / (1 - beta2) - 1, r = n - 2 * t * pow(beta2, t) / rest;
        step = (S)(a.lr / (1 - pow(own(a, 0), t)));
        rectified = (S)(r > 5 ? sqrt(rest * (r - 4) * (r - 2) * n / ((n - 4) * (n - 2) * r)) : 0);
    }
    __device__ S operator()(S x, S g, S *s, S) const
    {
        moments.move(x, g, s);
        S by = rectified > S(0) ? rectified / (sqrt(s[1]) + moments.eps) : S(1);
        return x * moments.keep - step * s[0] * by;
    }
};

template <class S> struct rmsprop {
    S lr, decay, eps, alpha, rest, momentum;
    bool centered, moves;
    rmsprop(const tr_step_attrs &a, bool)
        : lr((S)a.lr), decay((S)a.weight_decay), eps((S)own(a, 1)), alpha((S)own(a, 0)), rest((S)(1 - own(a, 0))),
          momentum((S)own(a, 3)), centered(own(a, 2) != 0), moves(own(a, 3) > 0)
    {
    }
    __device__ S operator()(S x, S g, S *s, S) const
    {
        g += decay * x;
        S variance = s[0] = s[0] * alpha + g * g * rest;
        if (centered) {
            s[1] = s[1] + (g - s[1]) * rest;
            variance -= s[1] * s[1];
            variance = variance < S(0) ? S(0) : variance;
        }
        S by = g / (sqrt(variance) + eps);
        if (moves) {
            S &b = centered ? s[2] : s[1];
            by = b = b * momentum + by;
        }
        return x - lr * by;
    }
};

template <class S> struct lars {
    S step, decay, momentum;
    lars(const tr_step_attrs &a, bool) : step((S)(a.lr * a.factor)), decay((S)a.weight_decay), momentum((S)own(a, 0)) {}
    __device__ S operator()(S x, S g, S *s, S) const
    {
        s[0] = s[0] * momentum + step * (g + decay * x);
        return x - s[0];
    }
};

/* The moments have been moved by the measure. */
template <class S> struct lamb {
    S step, correct1, correct2, eps, decay;
    lamb(const tr_step_attrs &a, bool)
        : step((S)(a.lr * a.factor)), correct1((S)(1 / (1 - pow(own(a, 0), (double)a.step)))),
          correct2((S)(1 / sqrt(1 - pow(own(a, 1), (double)a.step)))), eps((S)own(a, 2)), decay((S)a.weight_decay) {}
    __device__ S direction(S x, const S *s) const
    {
        return s[0] * correct1 / (sqrt(s[1]) * correct2 + eps) + decay * x;
    }
    __device__ S operator()(S x, S, S *s, S) const { return x - step * direction(x, s); }
};

template <class S> struct muon {
    S step, keep;
    muon(const tr_step_attrs &a, bool) : step((S)(a.lr * a.factor)), keep((S)(1 - a.lr * a.weight_decay)) {}
    __device__ S operator()(S x, S, S *, S direction) const { return x * keep - step * direction; }
};

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

constexpr int STATES = 3, AT_ONCE = 4;

/* T: the states' type. */
template <class P, class T = compute_of<P>> struct run_of {
    P *p;
    const P *g;
    T *state[STATES]; /* NULL after the last */
    const compute_of<P> *direction;
    int64_t n;
    int64_t place; /* of the first element in its arena */
};

/* The random halfwords of the elements with the places place / 4 * 4 … + 3, lowest first. */
__device__ inline uint64_t four_halfwords(uint64_t key, int64_t place)
{
    philox drawn = philox_at(key, 0, (uint64_t)place / 8);
    bool second = place % 8 >= 4;
    uint32_t low = second ? drawn.word[2] : drawn.word[0], high = second ? drawn.word[3] : drawn.word[1];
    return low | (uint64_t)high << 32;
}

/* State k as it is stored: bf16 is rounded up where the bits that go and the random ones have a carry. */
template <class T, class S> __device__ T stored(S x, int k, uint32_t halfword)
{
    if constexpr (std::is_same_v<T, bf16>) {
        const uint32_t times = k == 0 ? 1 : k == 1 ? 0x9e37 : 0x79b9;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        return bf16{(uint16_t)(x != x ? bits >> 16 | 0x40 : (bits + (uint16_t)(halfword * times)) >> 16)};
    } else {
        return x;
    }
}

/* What changes from step to step. */
template <class Rule> struct of_step {
    Rule rule;
    uint64_t key; /* of the random numbers that round states to bf16 */
};

/* N elements from `first` on; of several, first and the run's place are multiples of AT_ONCE. */
template <int N, class P, class T, class Rule>
__device__ inline void step_at(const run_of<P, T> &r, const of_step<Rule> &now, int64_t first)
{
    using S = compute_of<P>;
    const uint64_t random = std::is_same_v<T, bf16> ? four_halfwords(now.key, r.place + first) : 0;
    pack<P, N> p = *(const pack<P, N> *)(r.p + first), g = *(const pack<P, N> *)(r.g + first);
    pack<T, N> s[STATES];
    pack<S, N> direction = {};
    for (int k = 0; k < STATES; k++)
        if (r.state[k]) s[k] = *(const pack<T, N> *)(r.state[k] + first);
    if (r.direction) direction = *(const pack<S, N> *)(r.direction + first);
    for (int e = 0; e < N; e++) {
        S of_one[STATES];
        for (int k = 0; k < STATES; k++) of_one[k] = r.state[k] ? wide(s[k].at[e]) : S(0);
        p.at[e] = narrow<P>(now.rule(wide(p.at[e]), wide(g.at[e]), of_one, direction.at[e]));
        const int at_place = N == 1 ? (int)((r.place + first) % 4) : e;
        for (int k = 0; k < STATES; k++) s[k].at[e] = stored<T>(of_one[k], k, (uint32_t)(random >> 16 * at_place));
    }
    *(pack<P, N> *)(r.p + first) = p;
    for (int k = 0; k < STATES; k++)
        if (r.state[k]) *(pack<T, N> *)(r.state[k] + first) = s[k];
}

/* live: what this launch computes with, when it is one of a graph; else NULL. */
template <class P, class T, int V, class Rule>
__global__ void step_kernel(run_of<P, T> r, of_step<Rule> now, const of_step<Rule> *live)
{
    if (live) now = *live;
    int64_t packs = r.n / V;
    FOR_EACH_OF(at, packs + r.n % V)
    {
        if (V == 1 || at < packs) step_at<V>(r, now, at * V);
        else step_at<1>(r, now, packs * V + (at - packs));
    }
}

template <class P, class T> bool is_packed(const run_of<P, T> &r)
{
    uintptr_t places = (uintptr_t)r.p | (uintptr_t)r.g, states = (uintptr_t)r.direction;
    for (int k = 0; k < STATES; k++) states |= (uintptr_t)r.state[k];
    return places % (AT_ONCE * sizeof(P)) == 0 && states % (AT_ONCE * sizeof(T)) == 0;
}

/* Outputs from `first` on: p, then the states. */
template <class P, class T = compute_of<P>> run_of<P, T> run_from(const job &j, int first)
{
    const tr_step_attrs &a = j.attrs<tr_step_attrs>();
    run_of<P, T> r = {(P *)j.out(first).data, (const P *)j.in(0).data, {}, nullptr, numel(j.in(0)),
                      a.place};
    for (int k = 0; k < STATES; k++)
        r.state[k] = j.has_out(first + 1 + k) ? (T *)j.out(first + 1 + k).data : nullptr;
    if (j.has_in(1)) r.direction = (const compute_of<P> *)j.in(1).data;
    return r;
}

template <class F> tr_status for_parameters(tr_dtype dtype, F f)
{
    switch (dtype) {
    case TR_F32: return f(type_of<float>());
    case TR_F64: return f(type_of<double>());
    case TR_BF16: return f(type_of<bf16>());
    default: return TR_DECLINED;
    }
}

/* state_that_counts: what the rule does depends on whether it is there. */
template <class P, class T, template <class> class Rule> tr_status step_of(const job &j, int state_that_counts)
{
    using R = Rule<compute_of<P>>;
    run_of<P, T> r = run_from<P, T>(j, 0);
    const bool counts = r.state[state_that_counts] != nullptr;
    auto now = [counts](const tr_step_attrs &a) { return of_step<R>{R(a, counts), mixed(0x62663136u, (uint64_t)a.step)}; };
    const of_step<R> *in_graph;
    TRY(live<tr_step_attrs>(j, now, &in_graph));
    if (r.n == 0) return (tr_status)TR_OK;
    bool packed = is_packed(r);
    auto kernel = packed ? step_kernel<P, T, AT_ONCE, R> : step_kernel<P, T, 1, R>;
    return LAUNCH(j, kernel, grid_for(r.n, BLOCK * (packed ? AT_ONCE : 1)), BLOCK, 0, r, now(j.attrs<tr_step_attrs>()), in_graph);
}

/* MAY_BE_BF16: its states. */
template <template <class> class Rule, bool MAY_BE_BF16 = false> tr_status step(const job &j, int state_that_counts)
{
    return for_parameters(j.in(0).dtype, [&](auto t) {
        using P = typename decltype(t)::type;
        if constexpr (MAY_BE_BF16 && !std::is_same_v<P, double>)
            if (j.attrs<tr_step_attrs>().settings[BF16_STATE] != 0) return step_of<P, bf16, Rule>(j, state_that_counts);
        return step_of<P, compute_of<P>, Rule>(j, state_that_counts);
    });
}

/* ---- Measures: two sums over a whole parameter, in a fixed order ------------------------------------------------- */

using sums = two<double>;

/* |p|^2, |g|^2. */
template <class S> struct lars_measure {
    explicit lars_measure(const tr_step_attrs &) {}
    __device__ sums operator()(S x, S g, S *, S *) const { return sums{(double)x * (double)x, (double)g * (double)g}; }
};

/* Moves the moments: |p|^2, |r|^2. */
template <class S> struct lamb_measure {
    lamb<S> rule;
    S rest1, beta2, rest2;
    explicit lamb_measure(const tr_step_attrs &a)
        : rule(a, false), rest1((S)(1 - own(a, 0))), beta2((S)own(a, 1)), rest2((S)(1 - own(a, 1))) {}
    __device__ sums operator()(S x, S g, S *s, S *) const
    {
        s[0] = s[0] + (g - s[0]) * rest1;
        s[1] = s[1] * beta2 + g * g * rest2;
        S r = rule.direction(x, s);
        return sums{(double)x * (double)x, (double)r * (double)r};
    }
};

/* Makes the momentum and the direction: |d|^2. */
template <class S> struct muon_measure {
    S rest, mix;
    explicit muon_measure(const tr_step_attrs &a) : rest((S)(1 - own(a, 0))), mix((S)(own(a, 3) != 0 ? 1 : own(a, 0)))
    {
    }
    __device__ sums operator()(S, S g, S *s, S *d) const
    {
        s[0] = s[0] + (g - s[0]) * rest;
        *d = g + (s[0] - g) * mix;
        return sums{(double)*d * (double)*d, 0};
    }
};

constexpr int64_t MEASURED = 8192; /* elements of a block, at least */

template <class P, class Measure>
__global__ void measure_kernel(sums *parts, const P *p, const P *g, run_of<P> r, compute_of<P> *direction, int64_t each,
                               Measure measure)
{
    using S = compute_of<P>;
    int64_t begin = blockIdx.x * each, end = begin + each < r.n ? begin + each : r.n;
    sums sum = {0, 0};
    for (int64_t i = begin + threadIdx.y; i < end; i += blockDim.y) {
        S s[STATES], d = 0;
        for (int k = 0; k < STATES; k++) s[k] = r.state[k] ? r.state[k][i] : S(0);
        sum = both_of()(sum, measure(wide(p[i]), wide(g[i]), s, &d));
        for (int k = 0; k < STATES; k++)
            if (r.state[k]) r.state[k][i] = s[k];
        if (direction) direction[i] = d;
    }
    sum = reduce_in_group(sum, both_of());
    if (threadIdx.y == 0) parts[blockIdx.x] = sum;
}

__global__ void add_sums(const sums *parts, int64_t n, double *to)
{
    sums sum = {0, 0};
    for (int64_t i = threadIdx.y; i < n; i += blockDim.y) sum = both_of()(sum, parts[i]);
    sum = reduce_in_group(sum, both_of());
    if (threadIdx.y) return;
    to[0] = sum.first;
    to[1] = sum.second;
}

/* g, p -> sums, three states, direction */
template <template <class> class Measure> tr_status measure(const job &j)
{
    int64_t n = numel(j.in(0)), each = most(MEASURED, parts_of(n, 1024)), parts = most(1, parts_of(n, each));
    scratch memory(j, sizeof(sums) * (size_t)parts);
    TRY(memory.status());
    sums *of_parts = memory.as<sums>();
    TRY(for_parameters(j.in(0).dtype, [&](auto t) {
        using P = typename decltype(t)::type;
        using M = Measure<compute_of<P>>;
        run_of<P> r = run_from<P>(j, 0);
        r.direction = nullptr;
        auto *direction = j.has_out(1 + STATES) ? (compute_of<P> *)j.out(1 + STATES).data : nullptr;
        return LAUNCH(j, (measure_kernel<P, M>), (unsigned)parts, dim3(1, BLOCK), 0, of_parts, (const P *)j.in(1).data,
            (const P *)j.in(0).data, r, direction, each, M(j.attrs<tr_step_attrs>()));
    }));
    return LAUNCH(j, add_sums, 1, dim3(1, BLOCK), 0, of_parts, parts, (double *)j.out(0).data);
}

} // namespace

tr_status cuda_sgd_step(const job &j) { return step<sgd, true>(j, 0); }
tr_status cuda_adam_step(const job &j) { return step<adam, true>(j, 2); }
tr_status cuda_adamw_step(const job &j) { return step<adam, true>(j, 2); }
tr_status cuda_adadelta_step(const job &j) { return step<adadelta>(j, 0); }
tr_status cuda_adagrad_step(const job &j) { return step<adagrad>(j, 0); }
tr_status cuda_adamax_step(const job &j) { return step<adamax>(j, 0); }
tr_status cuda_lion_step(const job &j) { return step<lion, true>(j, 0); }
tr_status cuda_rprop_step(const job &j) { return step<rprop>(j, 0); }
tr_status cuda_nadam_step(const job &j) { return step<nadam>(j, 0); }
tr_status cuda_radam_step(const job &j) { return step<radam>(j, 0); }
tr_status cuda_rmsprop_step(const job &j) { return step<rmsprop>(j, 0); }
tr_status cuda_lars_step(const job &j) { return step<lars>(j, 0); }
tr_status cuda_lamb_step(const job &j) { return step<lamb>(j, 0); }
tr_status cuda_muon_step(const job &j) { return step<muon>(j, 0); }
tr_status cuda_lars_measure(const job &j) { return measure<lars_measure>(j); }
tr_status cuda_lamb_measure(const job &j) { return measure<lamb_measure>(j); }
tr_status cuda_muon_measure(const job &j) { return measure<muon_measure>(j); }
