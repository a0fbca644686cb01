/* Profiles: what is in them, that nothing is while none is taken, and what tr_fit() writes. */
#include "base/profile.h"
#include "files.h"

#include <trireme/train.h>

#include <cjson/cJSON.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const tr__span *find(tr__span_kind kind, const char *name)
{
    size_t count, lost;
    const tr__span *spans = tr__profile_spans(&count, &lost);
    for (size_t i = 0; i < count; i++)
        if (spans[i].kind == kind && strcmp(spans[i].name, name) == 0) return &spans[i];
    return NULL;
}

static tr_module *small_net(void)
{
    return tr_sequential(tr_linear(64, 128), tr_relu_layer(), tr_linear(128, 2));
}

static void step(tr_module *net)
{
    TR_SCOPE;
    tr_tensor *y = tr_zeros(TR_SHAPE(256), .dtype = TR_I64);
    TR_CHECK(tr_backward(tr_cross_entropy(tr_forward(net, tr_ones(TR_SHAPE(256, 64))), y)));
}

static void test_what_is_seen(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_module *net = small_net();
    step(net);
    size_t count, lost;
    tr__profile_spans(&count, &lost);
    assert_int_equal(count, 0);

    TR_CHECK(tr__profile_start());
    assert_int_equal(tr__profile_start(), TR_STATE);
    step(net);
    size_t seen;
    tr__profile_spans(&seen, &lost);
    tr__profile_pause(true);
    step(net);
    assert_int_equal(tr__profile_start(), TR_STATE);
    tr__profile_spans(&count, &lost);
    assert_int_equal(count, seen);
    tr__profile_pause(false);
    step(net);
    tr__profile_spans(&count, &lost);
    assert_int_equal(count, 2 * seen);
    tr__profile_stop();
    tr__profile_pause(false); /* none is taken: nothing begins */
    step(net);
    tr__profile_spans(&count, &lost);
    assert_int_equal(count, 2 * seen);
    const tr__span *whole = find(TR__SPAN_MODULE, "sequential"), *part = find(TR__SPAN_MODULE, "linear"),
                   *op = find(TR__SPAN_OP, "linear"), *backward = find(TR__SPAN_BACKWARD, "linear");
    assert_true(whole && part && op && backward);
    assert_string_equal(op->detail, "f32 [256, 128]");
    const tr__span *other = find(TR__SPAN_OP, "relu");
    assert_true(op->algorithm && *op->algorithm && other && !other->algorithm);
    assert_true(whole->begin <= part->begin && part->begin <= op->begin && op->begin <= op->end && op->end <= part->end &&
                part->end <= whole->end && whole->end <= backward->begin);
    /* The first layer's output is 128 KiB, kept for backward. */
    assert_true(part->kept >= 128 << 10 && part->peak >= part->kept);
    assert_true(whole->peak >= part->peak && whole->kept >= part->kept);
    tr__profile_drop();
    tr__profile_spans(&count, &lost);
    assert_int_equal(count, 0);
}

/* ---- What is written -------------------------------------------------------------------------------------------------- */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_true(text && fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

/* Every event has what the viewers want; how many there are of a category. */
static int count_events(const cJSON *events, const char *category, const char *name)
{
    int n = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, events)
    {
        const char *phase = cJSON_GetObjectItem(event, "ph")->valuestring;
        assert_non_null(cJSON_GetObjectItem(event, "pid"));
        assert_non_null(cJSON_GetObjectItem(event, "tid"));
        if (*phase == 'M') continue;
        assert_true(cJSON_GetObjectItem(event, "ts")->valuedouble > 1e15);
        if (*phase == 'X') assert_true(cJSON_GetObjectItem(event, "dur")->valuedouble >= 0);
        n += strcmp(cJSON_GetObjectItem(event, "cat")->valuestring, category) == 0 &&
             strcmp(cJSON_GetObjectItem(event, "name")->valuestring, name) == 0;
    }
    return n;
}

static void test_what_is_written(void **state)
{
    (void)state;
    TR_SCOPE;
    tr_tensor *x = tr_randn(1, TR_SHAPE(64, 64)), *y = tr_zeros(TR_SHAPE(64), .dtype = TR_I64);
    tr_dataset *set = tr_dataset_tensors(x, y);
    tr_trainer *trainer = tr_classifier_trainer(small_net(), set, .validation = set, .global_batch = 32, .steps = 8);
    const char *folder = files_path(".");
    TR_CHECK(tr_fit(trainer, .folder = folder, .profile_steps = 3, .validate_every = 1)); /* none of it is in the profile */

    char *trace = read_text(files_path("profile-rank0.trace.json")), *table = read_text(files_path("profile-rank0.txt"));
    cJSON *json = cJSON_Parse(trace);
    const cJSON *events = cJSON_GetObjectItem(json, "traceEvents");
    assert_true(cJSON_IsArray(events));
    for (int i = 1; i <= 8; i++) {
        char name[24];
        snprintf(name, sizeof name, "step %d", i);
        assert_int_equal(count_events(events, "step", name), i >= 3 && i < 6);
    }
    assert_int_equal(count_events(events, "module", "sequential.0"), 3);
    assert_int_equal(count_events(events, "module", "sequential.2"), 3);
    assert_true(count_events(events, "op", "linear") >= 6);
    assert_non_null(strstr(table, "Modules, forward"));
    assert_non_null(strstr(table, "backward linear"));
    assert_non_null(strstr(table, "op linear (")); /* by which algorithm */
    assert_non_null(strstr(trace, "\"algorithm\":\""));
    cJSON_Delete(json);
    free(trace);
    free(table);
    assert_int_equal(tr_fit(trainer, .profile_steps = 3), TR_INVALID);
}

static void test_what_cannot_be_written_ends_no_training(void **state)
{
    (void)state;
    TR_SCOPE;
    files_write("in-the-way/profile-rank0.trace.json/x", "", 0);
    tr_tensor *x = tr_randn(1, TR_SHAPE(64, 64)), *y = tr_zeros(TR_SHAPE(64), .dtype = TR_I64);
    tr_trainer *trainer = tr_classifier_trainer(small_net(), tr_dataset_tensors(x, y), .global_batch = 32, .steps = 8);
    assert_int_equal(tr_fit(trainer, .folder = files_path("in-the-way"), .profile_steps = 3), TR_INVALID);
    assert_non_null(strstr(tr_error_message(), "trained, but without a profile: cannot replace "));
    assert_int_equal(tr_trainer_steps(trainer), 8);
    char path[4096];
    int64_t step;
    TR_CHECK(tr_checkpoint_find(files_path("in-the-way"), path, &step));
    assert_int_equal(step, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_seen),
        cmocka_unit_test(test_what_is_written),
        cmocka_unit_test(test_what_cannot_be_written_ends_no_training),
    };
    return cmocka_run_group_tests(tests, files_begin, files_end);
}
