/* The reduction kernels for AVX2 with F16C. */
#include <immintrin.h>

#define VECTOR 32
#define TABLE tr__reduce_avx2
#define LOAD_F16(x) ((f32s)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x))))
#define STORE_F16(y, a) \
    _mm_storeu_si128((__m128i *)(void *)(y), _mm256_cvtps_ph((__m256)(a), _MM_FROUND_TO_NEAREST_INT))
#include "comm/algo/reduce_kernels.h"
