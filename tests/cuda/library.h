/*
 * What the doubles of CUDA's libraries share: elements of a type that is known at run time, loops over indices, sums of
 * products, and functions that are found by name. The nth call of any of those fails on request.
 */
#ifndef TR_TEST_CUDA_LIBRARY_H
#define TR_TEST_CUDA_LIBRARY_H

#include "cudart.h"

#include <array>

namespace tr_emulator {

enum class element { f64, f32, f16, bf16 };

inline double load(element type, const void *base, int64_t i)
{
    switch (type) {
    case element::f64: return static_cast<const double *>(base)[i];
    case element::f32: return double(static_cast<const float *>(base)[i]);
    case element::f16: return double(float(static_cast<const __half *>(base)[i]));
    default: return double(float(static_cast<const __nv_bfloat16 *>(base)[i]));
    }
}

inline void store(element type, void *base, int64_t i, double x)
{
    switch (type) {
    case element::f64: static_cast<double *>(base)[i] = x; break;
    case element::f32: static_cast<float *>(base)[i] = float(x); break;
    case element::f16: static_cast<__half *>(base)[i] = __half(float(x)); break;
    default: static_cast<__nv_bfloat16 *>(base)[i] = __nv_bfloat16(float(x)); break;
    }
}

/* 10 bits of the fraction are left. */
inline double to_tf32(double x)
{
    return double(tr_bits<float>((tr_bits<unsigned>(float(x)) + 0x1000u) & ~0x1fffu));
}

/* Calls f with every index of a shape, the last one running fastest. */
template <size_t N, typename F>
void for_each(const std::array<int64_t, N> &shape, F f)
{
    int64_t count = 1;
    for (int64_t n : shape) count *= n;
    for (int64_t i = 0; i < count; i++) {
        std::array<int64_t, N> index;
        int64_t rest = i;
        for (size_t d = N; d-- > 0; rest /= shape[d]) index[d] = rest % shape[d];
        f(index);
    }
}

/* Loops over `count` indices, each of which lies these strides further in a, b and c. */
struct loop { int64_t count, a, b, c; };

/* c += a b for every index of the nested loops. What they reach lies within the arrays, as add_products() has checked:
 * most of the time of a sanitized training would otherwise go here. */
__attribute__((no_sanitize("address", "undefined"))) inline void
add_checked(const loop *loops, size_t depth, const double *a, const double *b, double *c)
{
    const loop l = *loops;
    const double factor = *b;
    if (depth > 1)
        for (int64_t i = 0; i < l.count; i++)
            add_checked(loops + 1, depth - 1, a + i * l.a, b + i * l.b, c + i * l.c);
    else if (l.a == 1 && l.b == 0 && l.c == 1) /* the compiler makes vectors of it */
        for (int64_t i = 0; i < l.count; i++) c[i] += a[i] * factor;
    else
        for (int64_t i = 0; i < l.count; i++) c[i * l.c] += a[i * l.a] * b[i * l.b];
}

inline void add_products(const std::vector<loop> &loops, const std::vector<double> &a, const std::vector<double> &b,
    std::vector<double> &c)
{
    loop last = {1, 0, 0, 0};
    for (const loop &l : loops) {
        const int64_t n = l.count - 1;
        assert(n >= 0 && l.a >= 0 && l.b >= 0 && l.c >= 0);
        last = {1, last.a + n * l.a, last.b + n * l.b, last.c + n * l.c};
    }
    assert(last.a < std::ssize(a) && last.b < std::ssize(b) && last.c < std::ssize(c));
    add_checked(loops.data(), loops.size(), a.data(), b.data(), c.data());
}

/* A function of a library as the plug-in finds it: a call that is to fail returns the library's FAILURE instead. What
 * returns no status cannot fail. */
template <auto FUNCTION, int FAILURE> struct guarded;
template <typename R, typename... A, R (*FUNCTION)(A...), int FAILURE>
struct guarded<FUNCTION, FAILURE> {
    static inline const char *name;
    static R call(A... arguments)
    {
        if constexpr (std::is_same_v<R, int>)
            if (call_fails(name)) return FAILURE;
        return FUNCTION(arguments...);
    }
    static void *named(const char *text)
    {
        name = text;
        return reinterpret_cast<void *>(call);
    }
};
typedef std::map<std::string, void *> library_functions;
library_functions &cublaslt_functions(), &cudnn_functions();

} /* namespace tr_emulator */

#endif
