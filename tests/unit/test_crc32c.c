/* CRC-32C: known values, the instructions against plain C, parts put together. */
#include "base/crc32c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 200000 };

static int make_data(void **state)
{
    unsigned char *data = malloc(BYTES);
    uint32_t number = 1;
    for (int i = 0; data && i < BYTES; i++) data[i] = (unsigned char)((number = number * 1664525 + 1013904223) >> 24);
    *state = data;
    return data ? 0 : -1;
}

static int free_data(void **state)
{
    free(*state);
    return 0;
}

/* RFC 3720, B.4. */
static void known_values(void **state)
{
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(tr__crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(tr__crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(tr__crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(tr__crc32c(0, bytes, 32), 0x46dd794e);
    assert_int_equal(tr__crc32c_reference(0, bytes, 32), 0x46dd794e);
    assert_int_equal(tr__crc32c(7, NULL, 0), 7);
}

static void check(const unsigned char *data, size_t bytes)
{
    uint32_t expected = tr__crc32c_reference(5, data, bytes);
    assert_int_equal(tr__crc32c(5, data, bytes), expected);
    assert_int_equal(tr__crc32c_without_vectors(5, data, bytes), expected);
}

static void every_length_and_alignment(void **state)
{
    const unsigned char *data = *state;
    for (size_t bytes = 0; bytes < 1300; bytes++)
        for (size_t at = 0; at < 9; at++) check(data + at, bytes);
    for (size_t bytes = 3 * 1024 - 9; bytes < 3 * 1024 + 9; bytes++) check(data + 1, bytes);
    check(data, BYTES);
}

static void parts_put_together(void **state)
{
    const unsigned char *data = *state;
    uint32_t whole = tr__crc32c(0, data, BYTES);
    for (size_t cut = 0; cut <= BYTES; cut += cut < 20 ? 1 : 9973) {
        uint32_t first = tr__crc32c(0, data, cut);
        assert_int_equal(tr__crc32c(first, data + cut, BYTES - cut), whole);
        assert_int_equal(tr__crc32c_combine(first, tr__crc32c(0, data + cut, BYTES - cut), BYTES - cut), whole);
    }
}

/* Twice n bytes behind a part are 2n bytes: also where n takes more bits than any file has. */
static void parts_of_any_length(void **state)
{
    (void)state;
    const uint32_t first = 0xe3069283;
    for (uint64_t bytes = 1; bytes < 1ull << 62; bytes = 2 * bytes + (bytes >> 3 & 1)) {
        uint32_t twice = tr__crc32c_combine(tr__crc32c_combine(first, 0, bytes), 0, bytes);
        assert_int_equal(tr__crc32c_combine(first, 0, 2 * bytes), twice);
    }
}

static void a_flipped_bit_changes_it(void **state)
{
    unsigned char *data = *state;
    uint32_t whole = tr__crc32c(0, data, BYTES);
    for (size_t bit = 3; bit < 8ul * BYTES; bit += 99991) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_not_equal(tr__crc32c(0, data, BYTES), whole);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values),
        cmocka_unit_test(every_length_and_alignment),
        cmocka_unit_test(parts_put_together),
        cmocka_unit_test(parts_of_any_length),
        cmocka_unit_test(a_flipped_bit_changes_it),
    };
    return cmocka_run_group_tests(tests, make_data, free_data);
}
