/*
 * CRC-32C (Castagnoli 1993), the checksum of iSCSI, ext4 and Snappy, by the processor's own instructions where it has
 * any: some 50 GB/s with AVX-512, 17 to 22 GB/s without, on one core.
 *
 * It finds every single flipped bit, every two within 2^31 bits, and every burst of up to 32 bits. Other damage escapes
 * once in 2^32. It proves nothing against somebody who damages on purpose.
 */
#ifndef TR_BASE_CRC32C_H
#define TR_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what `crc` is the checksum of, followed by data. Begin with 0. */
uint32_t tr__crc32c(uint32_t crc, const void *data, size_t bytes);

/* The checksum of two parts, one after the other, from those of each: so that threads can share the work. */
uint32_t tr__crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes);

/* The same as on a processor without AVX-512; and in plain C: what the tests compare with. */
uint32_t tr__crc32c_without_vectors(uint32_t crc, const void *data, size_t bytes);
uint32_t tr__crc32c_reference(uint32_t crc, const void *data, size_t bytes);

#endif
