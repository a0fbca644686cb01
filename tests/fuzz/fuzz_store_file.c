/* The records of the file store. */
#include "fuzz.h"

#include "net/store/file.h"
#include "net/store/store.h"

#include <zlib.h>

/* Makes the checksum right, without which nothing else would be looked at. */
static void mend(uint8_t *bytes, size_t count)
{
    if (count < 8) return;
    size_t body = bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 24;
    if (body > count - 8) return;
    uint32_t sum = (uint32_t)crc32(0, bytes + 8, (unsigned)body);
    for (int i = 0; i < 4; i++) bytes[4 + i] = (uint8_t)(sum >> (8 * i));
}

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    size_t key = 1 + number % 7, value = number / 8 % 40, body = 2 + key + value;
    memset(bytes, 'x', 8 + body);
    memcpy(bytes, (uint8_t[]){(uint8_t)body, 0, 0, 0, 0, 0, 0, 0, (uint8_t)key, 0}, 10);
    mend(bytes, 8 + body);
    return 8 + body;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    uint8_t *copy = fuzz_copy(bytes, count);
    for (int mended = 0; mended < 2; mended++) {
        tr__store_setting s;
        ssize_t used = tr__store_record(copy, count, &s);
        FUZZ_CHECK(used >= 0 && used <= (ssize_t)count);
        if (used > 0) {
            FUZZ_CHECK(s.key_bytes >= 1 && s.key_bytes <= TR__KEY_MAX && s.bytes <= TR__VALUE_MAX);
            FUZZ_CHECK((const uint8_t *)s.key >= copy && (const uint8_t *)s.value + s.bytes == copy + used);
        }
        mend(copy, count);
    }
    free(copy);
    return 0;
}
