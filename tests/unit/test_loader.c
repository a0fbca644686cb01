/* The loader: what batches hold, in which order, whoever makes them; errors, early ends, what is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <trireme/trireme.h>

static void assert_failed(tr_status got, tr_status status, const char *part)
{
    assert_int_equal(got, status);
    if (!strstr(tr_error_message(), part)) fail_msg("\"%s\" lacks \"%s\"", tr_error_message(), part);
}

/* x: [n, 2] with (i, i + 0.5) in row i; y: [n] with 10 i */
static tr_dataset *numbers(int64_t n)
{
    tr_tensor *x = tr_empty(TR_SHAPE(n, 2)), *y = tr_empty(TR_SHAPE(n), .dtype = TR_I64);
    for (int64_t i = 0; i < n; i++) {
        ((float *)tr_data(x))[2 * i] = (float)i;
        ((float *)tr_data(x))[2 * i + 1] = (float)i + 0.5f;
        ((int64_t *)tr_data(y))[i] = 10 * i;
    }
    return tr_dataset_tensors(x, y);
}

/* The same samples from a function, which takes its time now and then. */
static tr_status get_number(const tr_sample_call *call, tr_sample *out)
{
    if (call->index % 7 == 0) usleep(300);
    float pair[2] = {(float)call->index, (float)call->index + 0.5f};
    out->x = tr_from(pair, TR_SHAPE(2));
    out->y = tr_scalar((double)(10 * call->index), TR_I64);
    return TR_OK;
}

static void check_batch(const tr_batch *b)
{
    assert_int_equal(tr_size(b->x, 0), b->count);
    assert_int_equal(tr_ndim(b->x), 2);
    assert_int_equal(tr_ndim(b->y), 1);
    for (int64_t i = 0; i < b->count; i++) {
        assert_int_equal(((int64_t *)tr_data(b->y))[i], 10 * b->indices[i]);
        float first = ((float *)tr_data(b->x))[2 * i], second = ((float *)tr_data(b->x))[2 * i + 1];
        assert_true(first == (float)b->indices[i] && second == first + 0.5f);
    }
}

/* Goes through an epoch and appends the indices; returns how many batches there were. */
static int64_t go_through(tr_loader *loader, int64_t *indices, int64_t *count, int64_t *duplicates)
{
    tr_batch b;
    tr_status status;
    int64_t batches = 0;
    *count = *duplicates = 0;
    while ((status = tr_loader_next(loader, &b)) == TR_OK) {
        TR_SCOPE;
        check_batch(&b);
        memcpy(indices + *count, b.indices, (size_t)b.count * sizeof *indices);
        *count += b.count;
        *duplicates += b.duplicates;
        batches++;
    }
    if (status != TR_END) fail_msg("%s", tr_error_message());
    assert_null(b.x);
    return batches;
}

static void test_batches_in_order(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers++) {
        TR_SCOPE;
        int64_t seen[100], count, duplicates;
        tr_loader *loader = tr_loader_new(numbers(100), .batch = 32, .workers = workers);
        TR_CHECK(tr_status_of(loader));
        assert_int_equal(tr_loader_batches(loader), 4);
        for (int epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(go_through(loader, seen, &count, &duplicates), 4);
            assert_int_equal(count, 100);
            assert_int_equal(duplicates, 0);
            for (int i = 0; i < 100; i++) assert_int_equal(seen[i], i);
        }
        loader = tr_loader_new(numbers(100), .batch = 32, .workers = workers, .drop_last = true);
        assert_int_equal(tr_loader_batches(loader), 3);
        assert_int_equal(go_through(loader, seen, &count, &duplicates), 3);
        assert_int_equal(count, 96);
    }
}

static void test_the_order_does_not_depend_on_workers(void **state)
{
    (void)state;
    TR_SCOPE;
    int64_t alone[211], seen[211], count, duplicates;
    tr_dataset *sets[] = {numbers(211), tr_dataset_new(211, get_number)};
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        tr_loader *loader = tr_loader_new(sets[0], .batch = 5, .shuffle = true, .seed = 9);
        TR_CHECK(tr_loader_set_epoch(loader, epoch));
        assert_int_equal(go_through(loader, alone, &count, &duplicates), 43);
        for (int workers = 1; workers < 6; workers += 2) {
            TR_SCOPE;
            loader = tr_loader_new(sets[workers % 4 == 1], .batch = 5, .shuffle = true, .seed = 9, .workers = workers,
                .prefetch = workers);
            TR_CHECK(tr_loader_set_epoch(loader, epoch));
            go_through(loader, seen, &count, &duplicates);
            assert_memory_equal(alone, seen, sizeof alone);
        }
    }
}

static void test_epochs_follow_each_other(void **state)
{
    (void)state;
    TR_SCOPE;
    int64_t first[50], second[50], again[50], count, duplicates;
    tr_loader *loader = tr_loader_new(numbers(50), .batch = 8, .shuffle = true, .workers = 2);
    go_through(loader, first, &count, &duplicates);
    go_through(loader, second, &count, &duplicates);
    assert_memory_not_equal(first, second, sizeof first);
    TR_CHECK(tr_loader_set_epoch(loader, 0));
    go_through(loader, again, &count, &duplicates);
    assert_memory_equal(first, again, sizeof first);
    go_through(loader, again, &count, &duplicates);
    assert_memory_equal(second, again, sizeof first);
}

static tr_status get_random(const tr_sample_call *call, tr_sample *out)
{
    out->x = tr_rand(call->seed, TR_SHAPE(2));
    return TR_OK;
}

/* The next batch, of all 50 samples, is that of this epoch: in its order, and with its random numbers. */
static void expect_epoch(tr_loader *loader, int64_t epoch)
{
    TR_SCOPE;
    tr_batch want, b;
    tr_loader *other = tr_loader_new(tr_dataset_new(50, get_random), .batch = 50, .shuffle = true, .seed = 6);
    TR_CHECK(tr_loader_set_epoch(other, epoch));
    TR_CHECK(tr_loader_next(other, &want));
    TR_CHECK(tr_loader_next(loader, &b));
    assert_memory_equal(b.indices, want.indices, sizeof(int64_t[50]));
    assert_memory_equal(tr_data(b.x), tr_data(want.x), sizeof(float[100]));
    assert_int_equal(tr_loader_next(loader, &b), TR_END);
}

static void test_the_epoch_that_was_set_last_counts(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        TR_SCOPE;
        tr_batch b;
        tr_dataset *set = tr_dataset_new(50, get_random);
        tr_sampler *sampler = tr_distributed_sampler(50, .seed = 6);
        TR_CHECK(tr_sampler_set_epoch(sampler, 3)); /* before the loader is made */
        tr_loader *loader = tr_loader_new(set, .batch = 50, .sampler = sampler, .seed = 6, .workers = workers);
        tr_loader *other = tr_loader_new(set, .batch = 50, .sampler = sampler, .seed = 6);
        expect_epoch(loader, 3);
        expect_epoch(loader, 4);
        TR_CHECK(tr_sampler_set_epoch(sampler, 3)); /* the same again */
        expect_epoch(loader, 3);
        TR_CHECK(tr_sampler_set_epoch(sampler, 9));
        TR_CHECK(tr_loader_set_epoch(loader, 7));
        expect_epoch(loader, 7);
        expect_epoch(loader, 8);
        TR_CHECK(tr_loader_set_epoch(loader, 1));
        TR_CHECK(tr_sampler_set_epoch(sampler, 5));
        expect_epoch(loader, 5);
        expect_epoch(other, 5);
        TR_CHECK(tr_loader_next(loader, &b)); /* epoch 6 is under way, and stays it */
        TR_CHECK(tr_sampler_set_epoch(sampler, 2));
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
        expect_epoch(loader, 2);

        /* A training that is resumed in the middle of an epoch may name it to the sampler, too. */
        loader = tr_loader_new(set, .batch = 5, .sampler = sampler, .seed = 6, .workers = workers);
        int64_t order[50];
        TR_CHECK(tr_loader_seek(loader, 4, 9));
        TR_CHECK(tr_sampler_set_epoch(sampler, 4));
        TR_CHECK(tr_sampler_indices(sampler, order));
        TR_CHECK(tr_loader_next(loader, &b));
        assert_memory_equal(b.indices, order + 45, sizeof(int64_t[5]));
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
    }
}

/* Ranks take each sample once, and the few that make them even are told. */
static void test_ranks_share_an_epoch(void **state)
{
    (void)state;
    TR_SCOPE;
    int times[10] = {0};
    for (int rank = 0; rank < 4; rank++) {
        tr_sampler *sampler = tr_distributed_sampler(10, .rank = rank, .world_size = 4, .in_order = true);
        tr_loader *loader = tr_loader_new(numbers(10), .batch = 2, .workers = rank, .sampler = sampler);
        tr_batch b;
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(b.count, 2);
        assert_int_equal(b.duplicates, 0);
        assert_int_equal(b.indices[1], rank + 4);
        times[b.indices[0]]++;
        times[b.indices[1]]++;
        TR_CHECK(tr_loader_next(loader, &b));
        check_batch(&b);
        assert_int_equal(b.count, 1);
        assert_int_equal(b.duplicates, rank >= 2);
        times[b.indices[0]] += b.duplicates == 0;
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
    }
    for (int i = 0; i < 10; i++) assert_int_equal(times[i], 1);
    tr_group *alone = tr_join();
    TR_CHECK(tr_status_of(alone));
    assert_int_equal(tr_loader_batches(tr_loader_new(numbers(10), .batch = 3, .group = alone)), 4);
    TR_CHECK(tr_leave(alone));
}

/* ---- What is kept ------------------------------------------------------------------------------------------------ */

static void test_a_kept_batch_stays_as_it_is(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers += 2) {
        TR_SCOPE;
        tr_loader *loader = tr_loader_new(numbers(4000), .batch = 400, .workers = workers);
        tr_tensor *kept = NULL, *view = NULL;
        tr_batch b;
        for (int i = 0; tr_loader_next(loader, &b) == TR_OK; i++) {
            if (i == 1) kept = tr_keep(b.x);
            if (i == 2) view = tr_slice(b.x, 0, 1, 3);
        }
        for (int64_t i = 0; i < 400; i++) assert_true(((float *)tr_data(kept))[2 * i] == (float)(400 + i));
        assert_true(((float *)tr_data(view))[0] == 801 && ((float *)tr_data(view))[2] == 802);
        tr_release(kept);
    }
}

static void test_a_batch_outlives_its_loader(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *kept;
    {
        TR_SCOPE;
        tr_batch b;
        TR_CHECK(tr_loader_next(tr_loader_new(numbers(100), .batch = 10, .workers = 2), &b));
        kept = tr_keep(b.x);
    }
    assert_true(((float *)tr_data(kept))[18] == 9);
    tr_release(kept);
}

/* ---- Early ends -------------------------------------------------------------------------------------------------- */

static void test_loaders_end_in_mid_epoch(void **state)
{
    (void)state;
    for (int batches = 0; batches < 8; batches++) {
        TR_SCOPE;
        tr_loader *loader = tr_loader_new(tr_dataset_new(100, get_number), .batch = 7, .workers = 3);
        tr_batch b;
        for (int i = 0; i < batches; i++) TR_CHECK(tr_loader_next(loader, &b));
    }
}

static void test_an_epoch_is_begun_anew(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers++) {
        TR_SCOPE;
        int64_t seen[100], count, duplicates;
        tr_loader *loader = tr_loader_new(tr_dataset_new(100, get_number), .batch = 7, .workers = workers);
        for (int batches = 0; batches < 5; batches++) {
            tr_batch b;
            for (int i = 0; i < batches; i++) TR_CHECK(tr_loader_next(loader, &b));
            TR_CHECK(tr_loader_set_epoch(loader, batches));
        }
        go_through(loader, seen, &count, &duplicates);
        for (int i = 0; i < 100; i++) assert_int_equal(seen[i], i);
    }
}

static void test_an_epoch_is_begun_in_its_middle(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        TR_SCOPE;
        tr_batch b;
        tr_loader *loader = tr_loader_new(numbers(20), .batch = 6, .workers = workers);
        TR_CHECK(tr_loader_next(loader, &b));
        TR_CHECK(tr_loader_seek(loader, 5, 2));
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(b.indices[0], 12);
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(b.indices[0], 18);
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
        TR_CHECK(tr_loader_next(loader, &b)); /* the epoch after it is a whole one */
        assert_int_equal(b.indices[0], 0);
        TR_CHECK(tr_loader_seek(loader, 0, 4));
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
        assert_failed(tr_loader_seek(loader, 0, 5), TR_INVALID, "no batch 5 of epoch 0");
        assert_failed(tr_loader_seek(loader, -1, 0), TR_INVALID, "epoch -1");
    }
}

/* Counts the calls, and takes its time from the second batch on. */
enum { FAST = 10000 };
static tr_status count_slowly(const tr_sample_call *call, tr_sample *out)
{
    atomic_fetch_add((atomic_int *)call->user, 1);
    if (call->index >= FAST) usleep(2000);
    out->x = tr_scalar(1, TR_F32);
    return TR_OK;
}

/* A worker ends with the sample that it is at, not with the batch. */
static void test_a_batch_is_given_up(void **state)
{
    (void)state;
    atomic_int calls = 0;
    {
        TR_SCOPE;
        tr_batch b;
        tr_loader *loader = tr_loader_new(tr_dataset_new(2 * FAST, count_slowly, .user = &calls), .batch = FAST,
            .workers = 1);
        TR_CHECK(tr_loader_next(loader, &b));
    }
    assert_in_range(atomic_load(&calls), FAST, 2 * FAST - 1); /* the second batch takes 20 s */
}

/* At most workers * prefetch batches are made ahead, whatever time there is. */
static void test_prefetch_is_bounded(void **state)
{
    (void)state;
    TR_SCOPE;
    atomic_int calls = 0;
    tr_loader *loader = tr_loader_new(tr_dataset_new(100, count_slowly, .user = &calls), .batch = 1, .workers = 2,
        .prefetch = 3); /* all of them fast ones */
    tr_batch b;
    for (int i = 1; i < 20; i++) {
        TR_CHECK(tr_loader_next(loader, &b));
        if (i % 5 == 0) usleep(30000);
        assert_in_range(atomic_load(&calls), i, i + 6);
    }
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static tr_status fail_at_some(const tr_sample_call *call, tr_sample *out)
{
    if (call->index == 13) return tr_fail(TR_IO, "cannot read image %d", 13);
    out->x = call->index == 22 ? tr_zeros(TR_SHAPE(3)) : tr_zeros(TR_SHAPE(2));
    out->y = call->index == 31 ? NULL : tr_scalar(1, TR_I64);
    if (call->index == 51) return TR_FORMAT; /* without a word */
    if (call->index == 47) out->x = tr_matmul(out->x, tr_zeros(TR_SHAPE(5)));
    return TR_OK;
}

static void test_errors_name_the_sample(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers++) {
        TR_SCOPE;
        tr_loader *loader = tr_loader_new(tr_dataset_new(70, fail_at_some, .name = "images"), .batch = 10,
            .workers = workers);
        tr_batch b;
        TR_CHECK(tr_loader_next(loader, &b));
        assert_failed(tr_loader_next(loader, &b), TR_IO, "loader: sample 13 of images: cannot read image 13");
        assert_null(b.x);
        assert_failed(tr_loader_next(loader, &b), TR_SHAPE,
            "sample 22 of images: its x is [3] of f32, and that of sample 20 of the same batch [2] of f32");
        assert_failed(tr_loader_next(loader, &b), TR_INVALID, "sample 31 of images: it has no y, unlike sample 30");
        assert_failed(tr_loader_next(loader, &b), TR_SHAPE, "sample 47 of images: matmul");
        assert_failed(tr_loader_next(loader, &b), TR_FORMAT, "loader: sample 51 of images: damaged or foreign data");
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(b.indices[0], 60);
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
    }
}

/* x and y as those of numbers(), more[0]: f64 [2, 2] with i, more[2]: whether i is odd. Some are unlike the others. */
static tr_status get_more(const tr_sample_call *call, tr_sample *out)
{
    TR_CHECK(get_number(call, out));
    out->more[0] = tr_full((double)call->index, call->index == 26 ? TR_SHAPE(2, 3) : TR_SHAPE(2, 2), .dtype = TR_F64);
    if (call->index != 33) out->more[2] = tr_scalar((double)(call->index % 2), TR_BOOL);
    if (call->index == 41) out->more[1] = tr_scalar(0, TR_F32);
    if (call->index == 52) out->more[5] = tr_matmul(out->x, tr_zeros(TR_SHAPE(5)));
    return TR_OK;
}

static void check_more(const tr_batch *b, tr_device device)
{
    check_batch(b);
    for (int f = 0; f < TR_SAMPLE_MORE; f++) {
        if (f != 0 && f != 2) assert_null(b->more[f]);
        else assert_true(b->more[f] && tr_device_equal(tr_device_of(b->more[f]), device));
    }
    assert_true(tr_ndim(b->more[0]) == 3 && tr_size(b->more[0], 0) == b->count && tr_ndim(b->more[2]) == 1);
    for (int64_t i = 0; i < b->count; i++) {
        assert_true(((double *)tr_data(b->more[0]))[4 * i + 3] == (double)b->indices[i]);
        assert_int_equal(((uint8_t *)tr_data(b->more[2]))[i], b->indices[i] % 2);
    }
}

static void test_batches_of_more_than_two_tensors(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        TR_SCOPE;
        tr_dataset *set = tr_dataset_new(60, get_more, .name = "sentences");
        tr_loader *loader = tr_loader_new(set, .batch = 10, .workers = workers, .device = tr_cpu(1));
        tr_batch b;
        for (int i = 0; i < 2; i++) {
            TR_CHECK(tr_loader_next(loader, &b));
            check_more(&b, tr_cpu(1));
        }
        assert_failed(tr_loader_next(loader, &b), TR_SHAPE, "loader: sample 26 of sentences: its more[0] is [2, 3] of f64, and "
            "that of sample 20 of the same batch [2, 2] of f64: give the loader a .collate");
        assert_null(b.more[0]);
        assert_failed(tr_loader_next(loader, &b), TR_INVALID, "sample 33 of sentences: it has no more[2], unlike sample 30");
        assert_failed(tr_loader_next(loader, &b), TR_INVALID, "sample 41 of sentences: it has a more[1], unlike sample 40");
        assert_failed(tr_loader_next(loader, &b), TR_SHAPE, "sample 52 of sentences: matmul");
        assert_int_equal(tr_loader_next(loader, &b), TR_END);

        /* The same rows as tensors, which are written in place. */
        tr_tensor *numbers = tr_arange(20, TR_F64, tr_cpu(0)), *halves = tr_from(((float[20][2]){{0}})[0], TR_SHAPE(20, 2));
        for (int i = 0; i < 40; i++) ((float *)tr_data(halves))[i] = (float)(i - i % 2) / 2 + (float)(i % 2) / 2;
        tr_tensor *odd = tr_zeros(TR_SHAPE(20), .dtype = TR_BOOL);
        for (int i = 1; i < 20; i += 2) ((uint8_t *)tr_data(odd))[i] = 1;
        tr_tensor *fours = tr_contiguous(tr_expand(tr_reshape(numbers, TR_SHAPE(20, 1, 1)), TR_SHAPE(20, 2, 2)));
        set = tr_dataset_tensors(halves, tr_cast(tr_affine(numbers, 10, 0), TR_I64), .more = {fours, NULL, odd});
        loader = tr_loader_new(set, .batch = 7, .workers = workers, .shuffle = true);
        for (int i = 0; i < 3; i++) {
            TR_CHECK(tr_loader_next(loader, &b));
            check_more(&b, tr_cpu(0));
        }
        assert_int_equal(tr_loader_next(loader, &b), TR_END);
    }
}

static tr_status get_of_eight_dimensions(const tr_sample_call *call, tr_sample *out)
{
    (void)call;
    out->x = tr_zeros(TR_SHAPE(1, 1, 1, 1, 1, 1, 1, 1));
    return TR_OK;
}

static void test_what_is_no_loader(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_batch b;
    tr_dataset *set = numbers(4);
    assert_failed(tr_status_of(tr_loader_new(NULL)), TR_INVALID, "dataset is NULL");
    assert_failed(tr_loader_next(tr_loader_new(set), NULL), TR_INVALID, "loader_next: batch is NULL");
    assert_failed(tr_status_of(tr_loader_new(set, .batch = -1)), TR_INVALID, "-1 samples");
    assert_failed(tr_status_of(tr_loader_new(set, .workers = -1)), TR_INVALID, "-1 workers");
    assert_failed(tr_status_of(tr_loader_new(set, .prefetch = -2)), TR_INVALID, "prefetch of -2");
    assert_failed(tr_status_of(tr_loader_new(set, .device = tr_cpu(99))), TR_DEVICE, "99");
    tr_sampler *sampler = tr_distributed_sampler(9, .in_order = true);
    assert_failed(tr_status_of(tr_loader_new(set, .sampler = sampler, .shuffle = true)), TR_INVALID, ".shuffle");
    assert_failed(tr_loader_next(tr_loader_new(set, .sampler = sampler, .workers = 1), &b), TR_INVALID,
        "asks for sample 4, and tensors has 4");
    tr_loader *bad = tr_loader_new(tr_dataset_slice(set, 3, 9));
    assert_failed(tr_loader_next(bad, &b), TR_INVALID, "[3, 9)");
    assert_failed(tr_loader_set_epoch(bad, 1), TR_INVALID, "[3, 9)");
    assert_int_equal(tr_loader_batches(bad), 0);
    assert_failed(tr_loader_set_epoch(tr_loader_new(set), -1), TR_INVALID, "-1");
    assert_failed(tr_loader_next(NULL, &b), TR_INVALID, "NULL");
    tr_loader *empty = tr_loader_new(tr_dataset_slice(set, 1, 1), .workers = 2);
    assert_int_equal(tr_loader_batches(empty), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(tr_loader_next(empty, &b), TR_END);
    assert_failed(tr_loader_next(tr_loader_new(set, .batch = 5, .drop_last = true), &b), TR_INVALID,
        "an epoch has no batch: of the 4 samples of tensors this rank takes 4, too few for one batch of 5: make .batch, or the sampler's .global_batch, smaller");
    sampler = tr_distributed_sampler(4, .global_batch = 6, .world_size = 2);
    assert_failed(tr_loader_next(tr_loader_new(set, .batch = 3, .sampler = sampler), &b), TR_INVALID,
        "of the 4 samples of tensors this rank takes 0");
    assert_int_equal(tr_loader_batches(tr_loader_new(set, .batch = INT64_MAX)), 1);
    assert_failed(tr_loader_next(tr_loader_new(tr_dataset_new((int64_t)1 << 61, get_of_eight_dimensions)), &b), TR_NO_MEMORY,
        "no memory for the order of 2305843009213693952 samples");
    assert_failed(tr_loader_next(tr_loader_new(tr_dataset_new(1, get_of_eight_dimensions)), &b), TR_SHAPE,
        "no room for a batch dimension");
}

/* ---- Collate, random numbers, devices ---------------------------------------------------------------------------- */

/* Sample i is i + 1 elements long. */
static tr_status get_long(const tr_sample_call *call, tr_sample *out)
{
    out->x = tr_full((double)call->index, TR_SHAPE(call->index + 1));
    return TR_OK;
}

/* Samples one after the other, and where each begins. */
static tr_status one_after_the_other(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    tr_tensor *all[16];
    int64_t *starts = tr_data(batch->y = tr_empty(TR_SHAPE(count), .dtype = TR_I64)), at = 0;
    for (int64_t i = 0; i < count; i++) {
        if (count == 3 && tr_size(samples[i].x, 0) > *(const int64_t *)user) return tr_fail(TR_SHAPE, "too long");
        all[i] = samples[i].x;
        starts[i] = at;
        at += tr_size(all[i], 0);
    }
    batch->x = count == 3 ? tr_cat(all, (int)count, 0) : NULL;
    return TR_OK;
}

static void test_collate(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        TR_SCOPE;
        const int64_t most = 7;
        tr_loader *loader = tr_loader_new(tr_dataset_new(10, get_long), .batch = 3, .collate = one_after_the_other,
            .user = (void *)&most, .workers = workers);
        tr_batch b;
        TR_CHECK(tr_loader_next(loader, &b));
        TR_CHECK(tr_loader_next(loader, &b));
        assert_int_equal(tr_size(b.x, 0), 4 + 5 + 6);
        assert_int_equal(((int64_t *)tr_data(b.y))[2], 9);
        assert_int_equal(b.count, 3);
        assert_failed(tr_loader_next(loader, &b), TR_SHAPE, "collate of the 3 samples from 6 of dataset on: too long");
        assert_failed(tr_loader_next(loader, &b), TR_INVALID,
            "collate of the 1 samples from 9 of dataset on: it made no x");
    }
}

/* Gets all fields, and makes one of them. */
static tr_status last_numbers(const tr_sample *samples, int64_t count, void *user, tr_sample *batch)
{
    double *numbers = tr_data(batch->more[4] = tr_empty(TR_SHAPE(count), .dtype = TR_F64));
    for (int64_t i = 0; i < count; i++) numbers[i] = tr_item(tr_select(tr_select(samples[i].more[0], 0, 1), 0, 1));
    batch->x = tr_scalar(0, TR_F32);
    if (user) batch->more[3] = tr_matmul(batch->x, batch->x);
    return TR_OK;
}

static void test_collate_of_more_than_two_tensors(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_batch b;
    tr_dataset *set = tr_dataset_new(10, get_more);
    TR_CHECK(tr_loader_next(tr_loader_new(set, .batch = 10, .collate = last_numbers, .device = tr_cpu(1)), &b));
    for (int i = 0; i < 10; i++) assert_true(((double *)tr_data(b.more[4]))[i] == i);
    assert_true(tr_device_equal(tr_device_of(b.more[4]), tr_cpu(1)) && !b.more[0] && !b.y);
    assert_failed(tr_loader_next(tr_loader_new(set, .collate = last_numbers, .user = set), &b), TR_SHAPE,
        "collate of the 10 samples from 0 of dataset on: matmul");
}

static void test_random_numbers_are_the_samples(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_dataset *set = tr_dataset_new(64, get_random);
    float alone[128], epochs[2][128];
    for (int run = 0; run < 3; run++) {
        tr_loader *loader = tr_loader_new(set, .batch = 4, .shuffle = true, .seed = 3, .workers = run);
        tr_batch b;
        for (int epoch = 0; epoch < 2; epoch++)
            while (tr_loader_next(loader, &b) == TR_OK)
                for (int i = 0; i < b.count; i++)
                    memcpy(epochs[epoch] + 2 * b.indices[i], (float *)tr_data(b.x) + 2 * i, 8);
        assert_memory_not_equal(epochs[0], epochs[1], sizeof epochs[0]);
        if (run) assert_memory_equal(alone, epochs[1], sizeof alone);
        memcpy(alone, epochs[1], sizeof alone);
    }
    for (int i = 1; i < 64; i++) assert_true(alone[2 * i] != alone[0]);
}

static void test_batches_go_to_their_device(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_batch b;
    TR_CHECK(tr_loader_next(tr_loader_new(numbers(10), .batch = 4, .device = tr_cpu(1), .workers = 1), &b));
    assert_true(tr_device_equal(tr_device_of(b.x), tr_cpu(1)));
    check_batch(&b);
    int64_t most = 7;
    TR_CHECK(tr_loader_next(tr_loader_new(tr_dataset_new(10, get_long), .batch = 3, .collate = one_after_the_other,
        .user = &most, .device = tr_cpu(1)), &b));
    assert_true(tr_device_equal(tr_device_of(b.x), tr_cpu(1)) && tr_device_equal(tr_device_of(b.y), tr_cpu(1)));
}

int main(void)
{
    setenv("TRIREME_CPU_DEVICES", "2", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_in_order),
        cmocka_unit_test(test_the_order_does_not_depend_on_workers),
        cmocka_unit_test(test_epochs_follow_each_other),
        cmocka_unit_test(test_the_epoch_that_was_set_last_counts),
        cmocka_unit_test(test_ranks_share_an_epoch),
        cmocka_unit_test(test_a_kept_batch_stays_as_it_is),
        cmocka_unit_test(test_a_batch_outlives_its_loader),
        cmocka_unit_test(test_loaders_end_in_mid_epoch),
        cmocka_unit_test(test_an_epoch_is_begun_anew),
        cmocka_unit_test(test_an_epoch_is_begun_in_its_middle),
        cmocka_unit_test(test_a_batch_is_given_up),
        cmocka_unit_test(test_prefetch_is_bounded),
        cmocka_unit_test(test_errors_name_the_sample),
        cmocka_unit_test(test_batches_of_more_than_two_tensors),
        cmocka_unit_test(test_what_is_no_loader),
        cmocka_unit_test(test_collate),
        cmocka_unit_test(test_collate_of_more_than_two_tensors),
        cmocka_unit_test(test_random_numbers_are_the_samples),
        cmocka_unit_test(test_batches_go_to_their_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
