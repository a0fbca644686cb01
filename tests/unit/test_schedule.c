/* How buffers are shared out among ranks: pure functions, for every number of ranks up to 33, without ranks. */
#include "base/memory.h"
#include "comm/algo/slice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const int64_t counts[] = {0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 1000, 1023, 4096, 65537, 1000003};
static const size_t elements[] = {1, 2, 4, 8};

enum { COUNTS = sizeof counts / sizeof *counts, ELEMENTS = sizeof elements / sizeof *elements };

static void check_slices(int64_t count, size_t element, int parts)
{
    int64_t per_line = (int64_t)(TR__CACHE_LINE / element), at = 0, shortest = INT64_MAX, longest = 0;
    for (int i = 0; i < parts; i++) {
        tr__range slice = tr__slice(count, element, parts, i);
        assert_int_equal(slice.begin, at); /* no gap, no overlap */
        assert_true(slice.end >= slice.begin);
        if (slice.end < count) assert_int_equal(slice.end % per_line, 0); /* cut at a cache line */
        int64_t lines = (slice.end - slice.begin + per_line - 1) / per_line;
        if (lines < shortest) shortest = lines;
        if (lines > longest) longest = lines;
        at = slice.end;
    }
    assert_int_equal(at, count);
    assert_true(longest - shortest <= 1);
}

static void slices_cover_every_element_once(void **state)
{
    (void)state;
    for (int parts = 1; parts <= 33; parts++)
        for (int c = 0; c < COUNTS; c++)
            for (int e = 0; e < ELEMENTS; e++) check_slices(counts[c], elements[e], parts);
}

static void slices_hold_for_the_largest_buffers(void **state)
{
    (void)state;
    int64_t most = PTRDIFF_MAX / 8;
    check_slices(most, 8, 33);
    check_slices(PTRDIFF_MAX - 64, 1, 7);
}

static void chunks_follow_each_other(void **state)
{
    (void)state;
    for (size_t chunk = 64; chunk <= 1 << 20; chunk *= 4) {
        for (int c = 0; c < COUNTS; c++) {
            for (int e = 0; e < ELEMENTS; e++) {
                int64_t n = tr__chunk_count(counts[c], elements[e], chunk), at = 0;
                for (int64_t i = 0; i < n; i++) {
                    tr__range r = tr__chunk(counts[c], elements[e], chunk, i);
                    assert_int_equal(r.begin, at);
                    assert_true(r.end > r.begin && (size_t)(r.end - r.begin) * elements[e] <= chunk);
                    at = r.end;
                }
                assert_int_equal(at, counts[c]);
            }
        }
    }
}

/*
 * The staged all_reduce, step by step, as src/comm/transport/shm_fold.c orders it, with ranks that run ahead of each
 * other as far as their waits allow: no place of the ring is written while another rank may still read it.
 */
enum { RING = 4, CHUNKS = 11 };

typedef struct rank_at {
    int filled, collected, folded; /* chunks */
} rank_at;

/* The farthest that rank 0 can get, in order fill(i), collect(i - 2), fold(i - 1), when rank 1 stands at `slow`. */
static void run_ahead(rank_at slow)
{
    for (int i = 0; i < CHUNKS + 2; i++) {
        if (i < CHUNKS) {
            if (i >= RING) { /* fill(i) writes where chunk i - RING was */
                assert_true(slow.folded > i - RING);
                assert_true(slow.collected > i - RING);
            }
        }
        if (i >= 2 && slow.folded <= i - 2) return; /* waits for DONE */
        if (i >= 1 && i <= CHUNKS && slow.filled <= i - 1) return; /* waits for FILLED */
    }
}

static void the_ring_is_never_overwritten(void **state)
{
    (void)state;
    for (int i = 0; i < CHUNKS + 2; i++) {
        /* Before and after each of the three in turn i. */
        int filled = i < CHUNKS ? i : CHUNKS, collected = i >= 2 ? i - 2 : 0, folded = i >= 1 ? i - 1 : 0;
        run_ahead((rank_at){filled, collected, folded});
        if (i < CHUNKS) filled++;
        run_ahead((rank_at){filled, collected, folded});
        if (i >= 2) collected++;
        run_ahead((rank_at){filled, collected, folded});
        if (i >= 1 && i <= CHUNKS) folded++;
        run_ahead((rank_at){filled, collected, folded});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_cover_every_element_once),
        cmocka_unit_test(slices_hold_for_the_largest_buffers),
        cmocka_unit_test(chunks_follow_each_other),
        cmocka_unit_test(the_ring_is_never_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
