/*
 * Polynomials over GF(2) stand in a word bit-reflected: bit 31 is the coefficient of x^0. A checksum is the remainder
 * of the message modulo P, so that of "a followed by n bytes b" is a·x^(8n) + b.
 */
#include "base/crc32c.h"

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

uint32_t tr__crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes)
{
    uint32_t shift = 1u << 31;                                          /* x^0, to become x^(8·second_bytes) */
    for (uint32_t power = 1u << 23; second_bytes; second_bytes >>= 1) { /* power: x^8, x^16, x^32, … */
        if (second_bytes & 1) shift = multiply(shift, power);
        power = multiply(power, power);
    }
    return multiply(first, shift) ^ second;
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
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_WORD(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_BYTE(crc, byte) _mm_crc32_u8((crc), (byte))
static int has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
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
#endif

#ifdef CRC_TARGET
/* The instruction takes 3 cycles and a new one can start in each, so three parts of the data are summed side by side.
 */
enum { PART = 8192 };
static const uint32_t after_one_part = 0x28461564, after_two_parts = 0xbf455269; /* x^(8·PART), x^(16·PART) */

static inline uint64_t word_at(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

CRC_TARGET static uint32_t by_instruction(uint32_t crc, const unsigned char *at, size_t bytes)
{
    crc = ~crc;
    for (; bytes >= 3 * PART; at += 3 * PART, bytes -= 3 * PART) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < PART; i += 8) {
            crc = CRC_WORD(crc, word_at(at + i));
            second = CRC_WORD(second, word_at(at + PART + i));
            third = CRC_WORD(third, word_at(at + 2 * PART + i));
        }
        crc = multiply(crc, after_two_parts) ^ multiply(second, after_one_part) ^ third;
    }
    for (; bytes >= 8; at += 8, bytes -= 8) crc = CRC_WORD(crc, word_at(at));
    for (; bytes; at++, bytes--) crc = CRC_BYTE(crc, *at);
    return ~crc;
}

uint32_t tr__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return has_instruction() ? by_instruction(crc, data, bytes) : tr__crc32c_reference(crc, data, bytes);
}
#else
uint32_t tr__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return tr__crc32c_reference(crc, data, bytes);
}
#endif
