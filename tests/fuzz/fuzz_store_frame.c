/* The parser of the TCP store's frames. What it accepts lies within the bytes and the limits, and written again it is the
 * same frame. */
#include "../store_frames.h"
#include "fuzz.h"

#include "net/store/store.h"

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    tr__frame f = {.type = 1 + number % TR__FRAME_DELETE, .timeout_ms = number, .amount = (int64_t)number << 20};
    f.code = number / 8 % TR__REPLY_CODES;
    bool has_key = f.type != TR__FRAME_HELLO && f.type != TR__FRAME_REPLY && f.type != TR__FRAME_GATHER;
    if (has_key) f.key = "group/world", f.key_bytes = 1 + number / 8 % 11;
    if (f.type == TR__FRAME_GET || f.type == TR__FRAME_WAIT) f.timeout_ms &= INT32_MAX;
    if (f.type >= TR__FRAME_SET && f.type != TR__FRAME_ADD && f.type != TR__FRAME_DELETE) f.value = "a value", f.value_bytes = number / 64 % 8;
    if (f.type == TR__FRAME_COMPARE_SET && number & 64) f.expected = "old", f.expected_bytes = number / 128 % 4;
    uint8_t list[64], *end = list;
    for (uint32_t i = 0; i <= number / 64 % 4; i++) end = tr__list_put_key(end, "endpoint/1/3", 1 + (number + i) % 8);
    if (f.type == TR__FRAME_GATHER) f.value = list, f.value_bytes = (size_t)(end - list), f.timeout_ms &= INT32_MAX;
    return flatten(&f, bytes);
}

/* Whatever stands in a list of either kind, its items lie within it. */
static void check_list(const void *items, size_t bytes)
{
    const char *key, *end = (const char *)items + bytes;
    const void *value;
    size_t size;
    for (tr__list l = {items, bytes}; tr__list_take_key(&l, &key, &size);)
        FUZZ_CHECK(size >= 1 && size <= TR__KEY_MAX && key + size <= end && l.bytes < bytes);
    for (tr__list l = {items, bytes}; tr__list_take_value(&l, &value, &size);)
        FUZZ_CHECK((value ? (const char *)value + size <= end : size == 0) && l.bytes < bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    size_t limit = count % 3 ? TR__FRAME_MAX : TR__FRAME_HEADER + 100;
    uint8_t *copy = fuzz_copy(bytes, count);
    tr__frame f;
    ssize_t used = tr__frame_parse(copy, count, limit, &f);
    FUZZ_CHECK(used >= -1 && used <= (ssize_t)count && used <= (ssize_t)limit);
    check_list(copy, count);
    if (used > 0) {
        check_list(f.value, f.value_bytes);
        FUZZ_CHECK(f.key_bytes <= TR__KEY_MAX && f.value_bytes <= TR__VALUE_MAX && f.expected_bytes <= TR__VALUE_MAX);
        uint8_t *again = malloc((size_t)used);
        FUZZ_CHECK(again && f.key_bytes + f.value_bytes + f.expected_bytes <= (size_t)used);
        FUZZ_CHECK(flatten(&f, again) == (size_t)used && memcmp(again, copy, (size_t)used) == 0);
        free(again);
    }
    free(copy);
    return 0;
}
