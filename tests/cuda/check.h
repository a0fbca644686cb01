/*
 * What the tests of the emulator share. A test is a cmocka program in a .cu file; test_kernels.cu is one for nvcc, too.
 */
#ifndef TR_TEST_CUDA_CHECK_H
#define TR_TEST_CUDA_CHECK_H

#include "portable.h"
#ifdef TR_CUDA_EMULATED
#include "cudart.h"
#endif

#include <initializer_list>
#include <setjmp.h>
#include <stdarg.h>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#define assert_cuda(call) assert_int_equal((call), cudaSuccess)

/* Memory on the current device. */
template <typename T>
struct device_array {
    T *data = nullptr;
    size_t count;

    explicit device_array(size_t n) : count(n)
    {
        assert_cuda(cudaMalloc(reinterpret_cast<void **>(&data), n * sizeof(T)));
    }
    explicit device_array(const std::vector<T> &from) : device_array(from.size())
    {
        assert_cuda(cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array() { (void)cudaFree(data); }
    std::vector<T> read() const
    {
        std::vector<T> to(count);
        assert_cuda(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
};

#ifdef TR_CUDA_EMULATED
/* Waits, expects a failure whose text holds all of these, and makes the device whole again. */
inline void assert_failure(std::initializer_list<const char *> texts)
{
    assert_int_not_equal(cudaDeviceSynchronize(), cudaSuccess);
    const std::string text = tr_emulator::take_failure(tr_emulator::current_device);
    for (const char *part : texts)
        if (text.find(part) == std::string::npos) fail_msg("\"%s\" lacks \"%s\"", text.c_str(), part);
}
#endif

#endif
