/*
 * What the doubles of CUDA's libraries share: elements of a type that is known at run time (cuBLASLt's names for them),
 * and functions that are found by name.
 */
#ifndef TR_TEST_CUDA_REFERENCE_H
#define TR_TEST_CUDA_REFERENCE_H

#include "cuda_emulator.h"
#include "cublaslt_abi.h"

namespace tr_emulator {

inline double load(int type, const void *base, int64_t i)
{
    switch (type) {
    case CUBLASLT_R_64F: return static_cast<const double *>(base)[i];
    case CUBLASLT_R_32F: return double(static_cast<const float *>(base)[i]);
    case CUBLASLT_R_16F: return double(float(static_cast<const __half *>(base)[i]));
    default: return double(float(static_cast<const __nv_bfloat16 *>(base)[i]));
    }
}

inline void store(int type, void *base, int64_t i, double x)
{
    switch (type) {
    case CUBLASLT_R_64F: static_cast<double *>(base)[i] = x; break;
    case CUBLASLT_R_32F: static_cast<float *>(base)[i] = float(x); break;
    case CUBLASLT_R_16F: static_cast<__half *>(base)[i] = __half(float(x)); break;
    default: static_cast<__nv_bfloat16 *>(base)[i] = __nv_bfloat16(float(x)); break;
    }
}

struct library_entry {
    const char *name;
    void *address;
};
extern const library_entry cublaslt_functions[], cudnn_functions[]; /* each ends with a name that is NULL */

} /* namespace tr_emulator */

#endif
