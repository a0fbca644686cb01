/* The parser of the TCP store's frames. What it accepts lies within the bytes and the limits, and written again it is the
 * same frame. */
#include "fuzz.h"

#include "comm/store.h"
#include "comm/store_frame.h"

static size_t flatten(const tr__frame *frame, uint8_t *bytes)
{
    unsigned char head[TR__FRAME_HEAD];
    struct iovec pieces[TR__FRAME_PIECES];
    size_t used = 0;
    int count = tr__frame_pieces(frame, head, pieces);
    for (int i = 0; i < count; i++) {
        memcpy(bytes + used, pieces[i].iov_base, pieces[i].iov_len);
        used += pieces[i].iov_len;
    }
    return used;
}

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    tr__frame f = {.type = 1 + number % TR__FRAME_REPLY, .timeout_ms = number, .amount = (int64_t)number << 20};
    f.code = number / 8 % TR__REPLY_CODES;
    bool has_key = f.type != TR__FRAME_HELLO && f.type != TR__FRAME_REPLY;
    if (has_key) f.key = "group/world", f.key_bytes = 1 + number / 8 % 11;
    if (f.type == TR__FRAME_GET || f.type == TR__FRAME_WAIT) f.timeout_ms &= INT32_MAX;
    if (f.type >= TR__FRAME_SET && f.type != TR__FRAME_ADD) f.value = "a value", f.value_bytes = number / 64 % 8;
    if (f.type == TR__FRAME_COMPARE_SET && number & 64) f.expected = "old", f.expected_bytes = number / 128 % 4;
    return flatten(&f, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    size_t limit = count % 3 ? TR__FRAME_MAX : TR__FRAME_HEADER + 100;
    uint8_t *copy = fuzz_copy(bytes, count);
    tr__frame f;
    ssize_t used = tr__frame_parse(copy, count, limit, &f);
    FUZZ_CHECK(used >= -1 && used <= (ssize_t)count && used <= (ssize_t)limit);
    if (used > 0) {
        FUZZ_CHECK(f.key_bytes <= TR__KEY_MAX && f.value_bytes <= TR__VALUE_MAX && f.expected_bytes <= TR__VALUE_MAX);
        uint8_t *again = malloc((size_t)used);
        FUZZ_CHECK(again && f.key_bytes + f.value_bytes + f.expected_bytes <= (size_t)used);
        FUZZ_CHECK(flatten(&f, again) == (size_t)used && memcmp(again, copy, (size_t)used) == 0);
        free(again);
    }
    free(copy);
    return 0;
}
