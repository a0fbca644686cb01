/*
 * What every kernel's host side needs: the call, its stream, memory for the time that it runs, errors, and the size of
 * grids.
 */
#ifndef TRIREME_CUDA_KERNEL_H
#define TRIREME_CUDA_KERNEL_H

#include "index.h"

#include <trireme/kernels.h>

/* What the library offers; set when it opens the plug-in. */
extern const tr_device_host *host;

#define TRY(expression)                         \
    do {                                        \
        tr_status try_status = (expression);    \
        if (try_status != TR_OK) return try_status; \
    } while (0)

/* The attributes of an op that has none. */
struct NONE {};

/* One run of an op: its device is current, and `stream` is where to enqueue. */
struct job {
    const tr_kernel_call &call;
    cudaStream_t stream;

    explicit job(const tr_kernel_call *c);
    const tr_device_tensor &in(int i) const { return call.inputs[i]; }
    const tr_device_tensor &out(int i) const { return call.outputs[i]; }
    bool has_in(int i) const { return i < call.n_inputs && call.inputs[i].data; }
    bool has_out(int i) const { return i < call.n_outputs && call.outputs[i].data; }
    template <class A> const A &attrs() const
    {
        static const A none = {};
        return std::is_empty_v<A> ? none : *(const A *)call.attrs;
    }
};

inline int64_t numel(const tr_shape &s)
{
    int64_t n = 1;
    for (int d = 0; d < s.ndim; d++) n *= s.dim[d];
    return n;
}
inline int64_t numel(const tr_device_tensor &x) { return numel(x.shape); }
inline int64_t size_at(const tr_device_tensor &x, int d) { return x.shape.dim[d < 0 ? d + x.shape.ndim : d]; }
inline int64_t stride_at(const tr_device_tensor &x, int d) { return x.stride[d < 0 ? d + x.shape.ndim : d]; }
/* Row-major, without gaps? */
bool is_row_major(const tr_device_tensor &x);
/* Row-major memory of a shape. */
tr_device_tensor dense_view(void *data, tr_dtype dtype, const tr_shape &shape);

/* Has it this dtype, and these strides wherever a size is not 1? NULL: any. */
bool lies_so(const tr_device_tensor &x, tr_dtype dtype, const int64_t *stride);

/* A vector of any float dtype that a kernel writes, or adds to what it holds. */
struct into_vector {
    void *at; /* NULL: not wanted */
    tr_dtype dtype;
    int64_t step;
    bool accumulate;
    /* The value that is added to. */
    template <class C> __device__ C before(int64_t i) const
    {
        return at && accumulate ? load_as<C>(dtype, at, i * step) : C(0);
    }
    template <class C> __device__ void put(int64_t i, C value) const
    {
        if (at) store_as<C>(dtype, at, i * step, value);
    }
};
/* Output i, if it is wanted. */
inline into_vector vector_to(const job &j, int i, bool accumulate)
{
    return j.has_out(i) ? into_vector{j.out(i).data, j.out(i).dtype, j.out(i).stride[0], accumulate}
                        : into_vector{nullptr, TR_F32, 0, false};
}

/* Launches a kernel on the job's stream: a tr_status. A template's name stands in parentheses when it has several
 * arguments. */
#define LAUNCH(j, kernel, grid, block, shared, ...) \
    check_cuda(TR_LAUNCH(kernel, dim3(grid), dim3(block), (shared), (j).stream, __VA_ARGS__), #kernel)
/* TR_OK, or the failure that a function of CUDA's returned; what: what was to be done, for the message. */
tr_status check_cuda(cudaError_t error, const char *what);

/* Memory on the job's stream, given back there when the object goes. */
class scratch {
public:
    scratch(const job &j, size_t bytes);
    ~scratch();
    scratch(const scratch &) = delete;
    scratch &operator=(const scratch &) = delete;
    tr_status status() const { return state; }
    template <class T> T *as() const { return (T *)memory; }

private:
    const job &owner;
    size_t bytes;
    void *memory;
    tr_status state;
};

/* A dense copy of x in another dtype or order of memory, or x itself when it is that. */
class staged {
public:
    staged(const job &j, const tr_device_tensor &x, tr_dtype dtype, const int64_t *stride);
    tr_status status() const { return state; }
    const tr_device_tensor &view() const { return tensor; }

private:
    tr_device_tensor tensor;
    scratch memory;
    tr_status state;
};

constexpr int BLOCK = 256; /* threads, where nothing speaks for another number */
constexpr int64_t GRID_LIMIT = 0x7fffffff, GRID_YZ_LIMIT = 65535;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t parts_of(int64_t n, int64_t each) { return (n + each - 1) / each; }
/* Blocks for n threads' worth of work, which a kernel that strides over the grid takes; enough to fill any device. */
inline unsigned grid_for(int64_t n, int64_t per_block = BLOCK)
{
    return (unsigned)most(1, least(parts_of(n, per_block), 1 << 16));
}

/* Positions that a thread of a one-dimensional grid works on. */
#define FOR_EACH_OF(i, n)                                                                         \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* Makes y, of x's shape or one to which that broadcasts, hold x's numbers. */
tr_status copy_into(const job &j, const tr_device_tensor &y, const tr_device_tensor &x);
tr_status fill(const job &j, const tr_device_tensor &y, double value);

/* ---- Ids that lie outside what they number -------------------------------------------------------------------------
 * A kernel cannot fail the call that started it: it notes the first such id, and the next wait for the device returns
 * the failure (TRIREME_CHECK=sync waits after each op). */
struct fault {
    int noted;         /* 0: nothing */
    int what;          /* of FAULT_… */
    int64_t id, position, limit;
};
enum { FAULT_EMBEDDING = 1, FAULT_TARGET, FAULT_TAKE, FAULT_SCATTER, FAULT_PUT };
fault *fault_of(int index); /* in memory that device and host share */

/* Ids of dtype i64 or i32, each of 0 … limit - 1. */
struct ids {
    const void *data;
    tr_dtype dtype;
    int64_t limit;
    fault *fault_at;
    int what;

    /* The position'th one, at an offset; -1: it lies outside. */
    __device__ int64_t at(int64_t offset, int64_t position) const
    {
        int64_t id = load_id(dtype, data, offset);
        if (id >= 0 && id < limit) return id;
        if (atomicCAS(&fault_at->noted, 0, 1) != 0) return -1;
        fault_at->what = what;
        fault_at->id = id;
        fault_at->position = position;
        fault_at->limit = limit;
        return -1;
    }
};

#endif
