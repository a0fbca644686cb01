/* The reduction kernels for any processor: 16-byte vectors are NEON's, SSE2's, or what the compiler makes of them. */
#define VECTOR 16
#define TABLE tr__reduce_plain
#define LOAD_F16(x)                                                                      \
    ({                                                                                   \
        f32s wide_ = {0};                                                                \
        for (int lane_ = 0; lane_ < WIDE; lane_++) wide_[lane_] = tr__f16_to_f32((x)[lane_]); \
        wide_;                                                                           \
    })
#define STORE_F16(y, a)                                                                       \
    do {                                                                                      \
        f32s wide_ = (a);                                                                     \
        for (int lane_ = 0; lane_ < WIDE; lane_++) (y)[lane_] = tr__f32_to_f16(wide_[lane_]); \
    } while (0)
#include "comm/algo/reduce_kernels.h"
