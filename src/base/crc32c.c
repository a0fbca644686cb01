/*
 * Polynomials over GF(2) stand in a word bit-reflected: bit 31 is the coefficient of x^0. A checksum is the remainder
 * of the message modulo P, so that of "a followed by n bytes b" is a·x^(8n) + b.
 */
#include "base/crc32c.h"

#include "base/isa.h"

#include <string.h>

enum { POLYNOMIAL = (int)0x82f63b78u };

/* a·b mod P. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b >> 1 ^ (b & 1 ? (uint32_t)POLYNOMIAL : 0);
    }
    return product;
}

/* x^(2^k). Squaring the last one gives the first: P is x + 1 times a primitive polynomial of degree 31. */
enum { SQUARES = 31 };
static const uint32_t squares[SQUARES] = {
    0x40000000, 0x20000000, 0x08000000, 0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18,
    0x510ac59a, 0xb82be955, 0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62,
    0x28461564, 0xbf455269, 0xe2ea32dc, 0xfe7740e6, 0xf946610b, 0x3c204f8f, 0x538586e3, 0x59726915,
    0x734d5309, 0xbc1ac763, 0x7d0722cc, 0xd289cabe, 0xe94ca9bc, 0x05b74f3f, 0xa51e1f42};

uint32_t tr__crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes)
{
    for (int k = 3; second_bytes; second_bytes >>= 1, k = (k + 1) % SQUARES) /* x^(8·second_bytes), bit by bit */
        if (second_bytes & 1) first = multiply(first, squares[k]);
    return first ^ second;
}

uint32_t tr__crc32c_reference(uint32_t crc, const void *data, size_t bytes)
{
    /* The remainders of all four-bit numbers times x^4. */
    static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                       0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                       0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const unsigned char *at = data;
    crc = ~crc;
    for (; bytes; bytes--, at++) {
        crc = table[(crc ^ *at) & 15] ^ crc >> 4;
        crc = table[(crc ^ *at >> 4) & 15] ^ crc >> 4;
    }
    return ~crc;
}

#if defined(__x86_64__)
#include <immintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2,pclmul")))
#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))
static int has_instruction(void)
{
    return tr__isa_allowed() > TR__ISA_GENERIC && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

/* a·x^(8·bytes) mod P. A product without carries of two reflected words is theirs times x, and the instruction's remainder of
 * a word has another x^32, so the constants are x^(8·bytes - 33). */
static const uint32_t after_one_part = 0x170076fa, after_two_parts = 0xa51b6135; /* 1,024 and 2,048 bytes */
CRC_TARGET static inline uint32_t shifted(uint32_t a, uint32_t constant)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)constant), 0);
    return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_WORD(crc, word) __crc32cd((crc), (word))
#define CRC_BYTE(crc, byte) __crc32cb((crc), (byte))
static int has_instruction(void)
{
    return (getauxval(AT_HWCAP) & 1ul << 7) != 0; /* HWCAP_CRC32 */
}

static const uint32_t after_one_part = 0xe4172b16, after_two_parts = 0x0d65762a; /* x^(8·1,024), x^(8·2,048) */
static inline uint32_t shifted(uint32_t a, uint32_t constant)
{
    return multiply(a, constant);
}
#endif

#ifdef CRC_TARGET
static inline uint64_t word_at(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Not inverted, as all below. The instruction takes 3 cycles and a new one can start in each, so three parts of the data are summed
 * side by side. */
CRC_TARGET static uint32_t by_instruction(uint32_t crc, const unsigned char *at, size_t bytes)
{
    enum { PART = 1024 };
    for (; bytes >= 3 * PART; at += 3 * PART, bytes -= 3 * PART) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < PART; i += 8) {
            crc = CRC_WORD(crc, word_at(at + i));
            second = CRC_WORD(second, word_at(at + PART + i));
            third = CRC_WORD(third, word_at(at + 2 * PART + i));
        }
        crc = shifted(crc, after_two_parts) ^ shifted(second, after_one_part) ^ third;
    }
    for (; bytes >= 8; at += 8, bytes -= 8) crc = CRC_WORD(crc, word_at(at));
    for (; bytes; bytes--, at++) crc = CRC_BYTE(crc, *at);
    return crc;
}
#endif

#if defined(__x86_64__)
/*
 * By products without carries (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel 2009): four
 * vectors of 64 bytes hold what is congruent to the message so far, in four columns. To go on by D bits, each 128-bit lane (low, high)
 * becomes low·x^(D+32) + high·x^(D-32), with two constants below the degree of P, plus the message D bits on.
 */
#define FOLD_TARGET __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.2")))
enum { COLUMNS_BYTES = 4 * 64 };

static int has_folding(void)
{
    return has_instruction() && tr__has_avx512() && __builtin_cpu_supports("vpclmulqdq");
}

FOLD_TARGET static inline __m512i folded(__m512i lanes, __m512i constants, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(lanes, constants, 0x00), high = _mm512_clmulepi64_epi128(lanes, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* all three, added */
}

FOLD_TARGET static inline __m128i folded_lane(__m128i lane, __m128i constants, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(lane, constants, 0x00), high = _mm_clmulepi64_si128(lane, constants, 0x11);
    return _mm_ternarylogic_epi64(low, high, next, 0x96);
}

/* At least COLUMNS_BYTES. */
FOLD_TARGET static uint32_t by_folding(uint32_t crc, const unsigned char *at, size_t bytes)
{
    const __m512i by_columns = _mm512_broadcast_i32x4(_mm_set_epi64x(0xb9e02b86, 0xdcb17aa4)); /* D = 2,048 */
    const __m512i by_vector = _mm512_broadcast_i32x4(_mm_set_epi64x(0x9e4addf8, 0x740eef02));  /* D = 512 */
    const __m128i by_lane = _mm_set_epi64x(0x14cd00bd6, 0xf20c0dfe);                           /* D = 128 */
    __m512i columns[4];
    for (int i = 0; i < 4; i++) columns[i] = _mm512_loadu_si512(at + 64 * i);
    columns[0] = _mm512_xor_si512(columns[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    at += COLUMNS_BYTES;
    bytes -= COLUMNS_BYTES;
    for (; bytes >= COLUMNS_BYTES; at += COLUMNS_BYTES, bytes -= COLUMNS_BYTES)
        for (int i = 0; i < 4; i++) columns[i] = folded(columns[i], by_columns, _mm512_loadu_si512(at + 64 * i));

    __m512i vector = columns[0];
    for (int i = 1; i < 4; i++) vector = folded(vector, by_vector, columns[i]);
    for (; bytes >= 64; at += 64, bytes -= 64) vector = folded(vector, by_vector, _mm512_loadu_si512(at));

    __m128i lane = _mm512_castsi512_si128(vector);
    lane = folded_lane(lane, by_lane, _mm512_extracti32x4_epi32(vector, 1));
    lane = folded_lane(lane, by_lane, _mm512_extracti32x4_epi32(vector, 2));
    lane = folded_lane(lane, by_lane, _mm512_extracti32x4_epi32(vector, 3));
    crc = CRC_WORD(0, (uint64_t)_mm_extract_epi64(lane, 0));
    crc = CRC_WORD(crc, (uint64_t)_mm_extract_epi64(lane, 1));
    return by_instruction(crc, at, bytes);
}
#endif

uint32_t tr__crc32c_without_vectors(uint32_t crc, const void *data, size_t bytes)
{
#ifdef CRC_TARGET
    if (has_instruction()) return ~by_instruction(~crc, data, bytes);
#endif
    return tr__crc32c_reference(crc, data, bytes);
}

uint32_t tr__crc32c(uint32_t crc, const void *data, size_t bytes)
{
#if defined(__x86_64__)
    if (bytes >= COLUMNS_BYTES && has_folding()) return ~by_folding(~crc, data, bytes);
#endif
    return tr__crc32c_without_vectors(crc, data, bytes);
}
