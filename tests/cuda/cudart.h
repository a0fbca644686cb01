/*
 * Inside the double of the runtime, and for the doubles of the libraries that enqueue work on its streams.
 */
#ifndef TR_TEST_CUDA_CUDART_H
#define TR_TEST_CUDA_CUDART_H

#include "runtime.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace tr_emulator {

enum { DEVICES = 8 }; /* at most */

/* ---- For tests: the environment variable CUDA_EMULATOR="seed=7 devices=2 memory_mb=512 fail=cudaMalloc:3" says the
 * same at the start of a process. ---- */

void set_devices(int count);
void set_memory_limit(size_t bytes); /* of each device */
/* The nth call from now on of a function ("cudaMalloc", "cublasLtMatmul"; "*": of anything) fails; 0: none. Of "kernel":
 * the nth that runs. */
void fail_call(const char *function, int nth);
/* What failed on a device, "" for nothing; the device works again. */
std::string take_failure(int device);

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Is this the call that shall fail? */
bool call_fails(const char *function);
/* One lock for all the state of the runtime; what runs on a stream runs without it. */
std::mutex &runtime_lock();
int current_device();
int device_count();

/* ---- Memory (cudart_memory.cc); with the lock held --------------------------------------------------------------- */

enum class where { pageable, pinned, device, nowhere /* a device's, but not allocated */ };
struct location {
    where kind;
    int device;
};
location locate(const void *memory, size_t bytes);
cudaError_t allocate_device(void **memory, size_t bytes, int device);
cudaError_t free_device(void *memory);
size_t device_bytes_used(int device);
size_t memory_limit();
/* Threads that run the device's work reach the memory of these devices, a bit each, until they leave; the host
 * never. */
void open_memory(unsigned devices);
void leave_memory(unsigned devices);
void close_idle_memory();

/* ---- Streams (cudart.cc) ----------------------------------------------------------------------------------------- */

/* A part of work that takes time: true when it has ended. */
typedef std::function<bool(cudaError_t *)> poll_function;

struct operation {
    const char *name;
    std::function<cudaError_t()> run;      /* or */
    std::function<poll_function()> start;  /* called each time that the operation comes up */
    unsigned devices = 0;                  /* whose memory it reaches beside its own device's and that one's peers' */
};
cudaError_t enqueue(cudaStream_t stream, operation op);
bool is_capturing(cudaStream_t stream);
/* With the lock held. Calls that may not be made while this thread captures, or while any does that asked for it: the
 * capture fails. */
cudaError_t refuse_while_capturing();
/* What goes wrong on the device by `run`: text for take_failure() and cudaGetErrorString(). */
void describe_failure(const std::string &text);

} /* namespace tr_emulator */

#endif
