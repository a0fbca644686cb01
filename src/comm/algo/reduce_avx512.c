/* The reduction kernels for AVX-512. */
#include <immintrin.h>

#define VECTOR 64
#define TABLE tr__reduce_avx512
#define LOAD_F16(x) ((f32s)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x))))
#define STORE_F16(y, a) \
    _mm256_storeu_si256((__m256i *)(void *)(y), _mm512_cvtps_ph((__m512)(a), _MM_FROUND_TO_NEAREST_INT))
#include "comm/algo/reduce_kernels.h"
