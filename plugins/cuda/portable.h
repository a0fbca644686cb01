/*
 * What lets one .cu file be compiled by nvcc for the card and by g++ for the tests: how a kernel is launched, how it names
 * its dynamic shared memory, and one function for each PTX instruction. A .cu file includes this header and none of the
 * toolkit's.
 *
 * g++ compiles with `-x c++ -include tests/cuda/cuda_emulator.h`, which declares the language and the runtime itself, so
 * that the tests need no toolkit and run the same code with and without one.
 */
#ifndef TR_CUDA_PORTABLE_H
#define TR_CUDA_PORTABLE_H

#ifndef TR_CUDA_EMULATED
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#endif

#include <stddef.h>
#include <stdint.h>

/* ---- Libraries --------------------------------------------------------------------------------------------------- */

/* A shared library by its name, and a function of it; NULL: there is none. The emulator has doubles. It stays open. */
#ifdef TR_CUDA_EMULATED
inline void *tr_library_open(const char *name) { return tr_emulator::library_open(name); }
inline void *tr_library_find(void *library, const char *function) { return tr_emulator::library_find(library, function); }
#else
inline void *tr_library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }
inline void *tr_library_find(void *library, const char *function) { return dlsym(library, function); }
#endif

/* ---- Launching --------------------------------------------------------------------------------------------------- */

/*
 * TR_LAUNCH(kernel, grid, block, shared, stream, arguments...) is a cudaError_t. The arguments are converted to the types of
 * the kernel's parameters; `shared` is in bytes. A template's name stands in parentheses: TR_LAUNCH((scale<float, 4>), …).
 * TR_LAUNCH_COOPERATIVE makes all blocks resident at once, so that the kernel may call tr_grid_sync().
 */
#define TR_LAUNCH(kernel, grid, block, shared, stream, ...) \
    tr_launch(#kernel, false, kernel, grid, block, shared, stream, ##__VA_ARGS__)
#define TR_LAUNCH_COOPERATIVE(kernel, grid, block, shared, stream, ...) \
    tr_launch(#kernel, true, kernel, grid, block, shared, stream, ##__VA_ARGS__)

/* TR_DYNAMIC_SHARED(float, tile); declares float *tile, the block's dynamic shared memory, aligned to 128 bytes. */
#ifdef TR_CUDA_EMULATED
#define TR_DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(tr_emulator::dynamic_shared())
#else
#define TR_DYNAMIC_SHARED(type, name)                                           \
    extern __shared__ __align__(128) unsigned char tr_dynamic_shared_bytes[];   \
    type *name = reinterpret_cast<type *>(tr_dynamic_shared_bytes)

template <typename... Parameters, typename... Arguments>
cudaError_t tr_launch(const char *, bool cooperative, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
    cudaStream_t stream, Arguments &&...arguments)
{
    return [&](Parameters... values) {
        void *addresses[] = {const_cast<void *>(static_cast<const void *>(&values))..., nullptr};
        const void *function = reinterpret_cast<const void *>(kernel);
        return cooperative ? cudaLaunchCooperativeKernel(function, grid, block, addresses, shared, stream)
                           : cudaLaunchKernel(function, grid, block, addresses, shared, stream);
    }(static_cast<Arguments &&>(arguments)...);
}

__device__ inline void tr_grid_sync() { cooperative_groups::this_grid().sync(); }
#endif

/* 2^x to some 22 bits by one instruction; results below 2^-126 are 0. */
__device__ inline float tr_exp2(float x)
{
#ifdef TR_CUDA_EMULATED
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* 1/x to some 23 bits by one instruction; results below 2^-126 are 0. */
__device__ inline float tr_reciprocal(float x)
{
#ifdef TR_CUDA_EMULATED
    return 1 / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* ---- Matrix instructions ----------------------------------------------------------------------------------------- */

/*
 * The fragments of mma.m16n8k16 with g = lane / 4 and t = lane % 4, two 16-bit elements to an unsigned, the lower index in
 * the lower half:
 *   a[0] = A[g][2t, 2t+1]       a[1] = A[g+8][2t, 2t+1]     a[2] = A[g][2t+8, 2t+9]   a[3] = A[g+8][2t+8, 2t+9]
 *   b[0] = B[2t, 2t+1][g]       b[1] = B[2t+8, 2t+9][g]
 *   d[0], d[1] = D[g][2t, 2t+1] d[2], d[3] = D[g+8][2t, 2t+1]
 */
__device__ inline float tr_mma_element(unsigned pair, int half, const __half *)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16 * half)));
}

__device__ inline float tr_mma_element(unsigned pair, int half, const __nv_bfloat16 *)
{
    return __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(pair >> 16 * half)));
}

/* d += A B by shuffles, for a card without the instruction. */
template <typename T>
__device__ inline void tr_mma_by_shuffles(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    const T *type = nullptr;
    const unsigned lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
    for (int part = 0; part < 2; part++) {       /* k = 8 part + 2 t + half */
        for (unsigned t = 0; t < 4; t++) {
            const unsigned upper = __shfl_sync(~0u, a[2 * part], static_cast<int>(row + t));
            const unsigned lower = __shfl_sync(~0u, a[2 * part + 1], static_cast<int>(row + t));
            const unsigned left = __shfl_sync(~0u, b[part], static_cast<int>(column + t));
            const unsigned right = __shfl_sync(~0u, b[part], static_cast<int>(column + 4 + t));
            for (int half = 0; half < 2; half++) {
                d[0] += tr_mma_element(upper, half, type) * tr_mma_element(left, half, type);
                d[1] += tr_mma_element(upper, half, type) * tr_mma_element(right, half, type);
                d[2] += tr_mma_element(lower, half, type) * tr_mma_element(left, half, type);
                d[3] += tr_mma_element(lower, half, type) * tr_mma_element(right, half, type);
            }
        }
    }
}

/* d[16, 8] += A[16, 16] B[16, 8] by the 32 lanes of a warp; blockDim.x is a multiple of 32. T: __half or __nv_bfloat16. */
template <typename T>
__device__ inline void tr_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

#if defined(TR_CUDA_EMULATED)
template <typename T>
__device__ inline void tr_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    tr_emulator::mma<T>(d, a, b);
}
#else
#define TR_MMA(shape, type, d, a0, a1, a2, a3, b0, b1)                                                                  \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 "                                        \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                       \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
template <>
__device__ inline void tr_mma<__half>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    TR_MMA("m16n8k16", "f16", d, a[0], a[1], a[2], a[3], b[0], b[1]);
#else
    for (int part = 0; part < 2; part++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * part]), "r"(a[2 * part + 1]), "r"(b[part]));
#endif
}

template <>
__device__ inline void tr_mma<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if __CUDA_ARCH__ >= 800
    TR_MMA("m16n8k16", "bf16", d, a[0], a[1], a[2], a[3], b[0], b[1]);
#else
    tr_mma_by_shuffles<__nv_bfloat16>(d, a, b);
#endif
}
#undef TR_MMA
#endif

/*
 * Loads COUNT (2 or 4) matrices of 8 x 8 elements of 16 bits from shared memory. Lane i gives the address of row i % 8 of
 * matrix i / 8 (16 bytes, aligned to 16); r[m] gets elements [lane / 4][2 (lane % 4), 2 (lane % 4) + 1] of matrix m, or
 * with TRANSPOSED of its transpose.
 */
template <int COUNT, bool TRANSPOSED = false>
__device__ inline void tr_ldmatrix(unsigned (&r)[COUNT], const void *row)
{
    static_assert(COUNT == 2 || COUNT == 4, "tr_ldmatrix loads 2 or 4 matrices");
#ifdef TR_CUDA_EMULATED
    tr_emulator::load_matrices(r, COUNT, TRANSPOSED, row);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
#define TR_LDMATRIX4(trans)                                                                                   \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];"                     \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[COUNT - 2]), "=r"(r[COUNT - 1]) : "r"(address) : "memory")
#define TR_LDMATRIX2(trans)                                                                                   \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" trans ".shared.b16 {%0,%1}, [%2];"                           \
                 : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory")
    if constexpr (COUNT == 4 && TRANSPOSED) TR_LDMATRIX4(".trans");
    else if constexpr (COUNT == 4) TR_LDMATRIX4("");
    else if constexpr (TRANSPOSED) TR_LDMATRIX2(".trans");
    else TR_LDMATRIX2("");
#undef TR_LDMATRIX4
#undef TR_LDMATRIX2
#endif
}

/* ---- Asynchronous copies to shared memory ------------------------------------------------------------------------ */

/*
 * Copies 16 aligned bytes from global to shared memory, or zeroes them when `valid` is false (`global` is then not read).
 * The copy is there after tr_cp_async_wait() of its group and, for other threads, a __syncthreads() after that. Cards
 * before sm_80 copy at once.
 */
__device__ inline void tr_cp_async16(void *shared, const void *global, bool valid = true)
{
#if defined(TR_CUDA_EMULATED)
    tr_emulator::copy_async(shared, global, valid);
#elif __CUDA_ARCH__ >= 800
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(global), "r"(valid ? 16 : 0) : "memory");
#else
    *static_cast<uint4 *>(shared) = valid ? *static_cast<const uint4 *>(global) : make_uint4(0, 0, 0, 0);
#endif
}

/* Closes a group: what this thread has copied since the last one. */
__device__ inline void tr_cp_async_commit()
{
#if defined(TR_CUDA_EMULATED)
    tr_emulator::copy_commit();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most LEFT of this thread's groups are under way. */
template <int LEFT>
__device__ inline void tr_cp_async_wait()
{
#if defined(TR_CUDA_EMULATED)
    tr_emulator::copy_wait(LEFT);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
#endif
}

#endif
