/*
 * A rank of a training job fails or goes in one of many ways, and the launcher names that rank: not one that lost it,
 * whichever ends first.
 *
 * ctest: timeout=300
 */
#include <trireme/trireme.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, FAILING_STEP = 3, WIDTH = 32, CLASSES = 4 };

/* What happens in the third step on one rank. */
typedef enum event {
    BACKWARD_FAILS,
    FORWARD_FAILS,
    LOADER_FAILS,
    FAILS,
    RETURNS,
    LEAVES,
    EXITS_0,
    EXITS_3,
    DIES,
    EVENTS
} event;

typedef struct plan {
    event event;
    int culprit;
    char transport[8];
} plan;

static const plan *todo; /* of a rank's process */
static int own_rank, step;

static bool now(event e)
{
    return todo->event == e && own_rank == todo->culprit && step == FAILING_STEP;
}

/* ---- What the ranks do ------------------------------------------------------------------------------------------- */

static tr_status pass_infer(tr_op_call *call)
{
    return tr_op_output(call, 0, tr_shape_of(call->inputs[0]), TR_F32);
}

static tr_status pass_forward(tr_op_call *call)
{
    if (now(FORWARD_FAILS)) return tr_fail(TR_IO, "the disk of the forward is gone");
    memcpy(tr_data(call->outputs[0]), tr_data(call->inputs[0]), (size_t)tr_numel(call->inputs[0]) * sizeof(float));
    return TR_OK;
}

static tr_status pass_backward(tr_backward_call *call)
{
    if (now(BACKWARD_FAILS)) return tr_fail(TR_IO, "the disk of the backward is gone");
    call->grad_inputs[0] = call->grad_outputs[0];
    return TR_OK;
}

static const tr_op pass_op = {
    .size = sizeof(tr_op), .name = "pass", .infer = pass_infer, .forward = pass_forward, .backward = pass_backward};

static tr_tensor *pass(tr_tensor *x)
{
    return tr_apply(&pass_op, NULL, &x, 1, NULL);
}

static tr_status make_sample(const tr_sample_call *call, tr_sample *out)
{
    if (now(LOADER_FAILS)) return tr_fail(TR_IO, "the disk of the loader is gone");
    out->x = tr_randn((uint64_t)call->index, TR_SHAPE(WIDTH));
    out->y = tr_scalar((double)(call->index % CLASSES), TR_I64);
    return tr_status_of(out->x);
}

#define TRY(expression)                    \
    do {                                   \
        tr_status try_ = (expression);     \
        if (try_ != TR_OK) return try_;    \
    } while (0)

/* Several buckets, so that some are under way when the backward fails. */
static tr_status train(const plan *p)
{
    TR_SCOPE;
    todo = p;
    tr_group *world = tr_join(.transport = p->transport);
    TRY(tr_status_of(world));
    own_rank = tr_rank(world);
    tr_module *net = tr_sequential(tr_linear(WIDTH, WIDTH), tr_activation_layer(pass), tr_linear(WIDTH, CLASSES));
    tr_module *ddp = tr_ddp(net, world, .bucket_mb = 1e-9);
    tr_optimizer *opt = tr_sgd(tr_parameters(net), .lr = 0.1);
    tr_loader *loader = tr_loader_new(tr_dataset_new(256, make_sample), .batch = 8, .group = world);
    tr_batch b;
    for (step = 1; step <= STEPS; step++) {
        TR_SCOPE;
        TRY(tr_loader_next(loader, &b));
        if (now(FAILS)) return tr_fail(TR_IO, "the disk is gone");
        if (now(RETURNS)) return TR_OK;
        if (now(LEAVES)) return tr_leave(world);
        if (now(EXITS_0)) exit(0);
        if (now(EXITS_3)) exit(3);
        if (now(DIES)) raise(SIGKILL);
        tr_tensor *loss = tr_cross_entropy(tr_forward(ddp, b.x), b.y);
        tr_zero_grad(opt);
        TRY(tr_backward(loss));
        TRY(tr_step(opt));
    }
    return tr_leave(world);
}

static tr_status train_spawned(int rank, void *argument, size_t bytes)
{
    (void)rank, (void)bytes;
    return train(argument);
}

/* ---- What is reported -------------------------------------------------------------------------------------------- */

/* What the report says of the culprit, after "rank 1 (pid 4242) " or of a function of tr_spawn() after "rank 1". */
static const struct {
    const char *of_program, *of_function;
    tr_status status; /* of tr_spawn() */
} want[EVENTS] = {
    [BACKWARD_FAILS] = {"exited with 1 ", ": the disk of the backward is gone", TR_IO},
    [FORWARD_FAILS] = {"exited with 1 ", ": the disk of the forward is gone", TR_IO},
    [LOADER_FAILS] = {"exited with 1 ", "the disk of the loader is gone", TR_IO},
    [FAILS] = {"exited with 1 ", ": the disk is gone", TR_IO},
    [RETURNS] = {"exited with 0 ", " returned, though others still needed it: rank ", TR_PEER},
    [LEAVES] = {"exited with 0 ", " returned, though others still needed it: rank ", TR_PEER},
    [EXITS_0] = {"exited with 0 ", ": the process ended before its function returned", TR_CHILD},
    [EXITS_3] = {"exited with 3 ", " (pid ", TR_CHILD},
    [DIES] = {"was killed by signal 9 ", " (pid ", TR_CHILD},
};

static void ignore(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)rank, (void)is_stderr, (void)line, (void)length, (void)user;
}

static void check_report(const plan *p, bool fails_so, const tr_launch_report *report, tr_status status,
    const char *words)
{
    char name[16];
    snprintf(name, sizeof name, "rank %d", p->culprit);
    bool named = report->first_rank == p->culprit && strncmp(report->text, name, strlen(name)) == 0;
    if (!fails_so || !named || !strstr(report->text, words))
        fail_msg("event %d on rank %d over %s: %s, rank %d: %s", (int)p->event, p->culprit, p->transport,
            tr_status_name(status), report->first_rank, report->text);
}

static void launch_and_check(const plan *p, int ranks)
{
    tr_launch_report report;
    char event_text[8], culprit[8];
    snprintf(event_text, sizeof event_text, "%d", (int)p->event);
    snprintf(culprit, sizeof culprit, "%d", p->culprit);
    const char *const argv[] = {"/proc/self/exe", "train", event_text, culprit, p->transport, NULL};
    tr_status status = tr_launch(argv, ranks, .output = ignore, .report = &report);
    check_report(p, status == TR_CHILD, &report, status, want[p->event].of_program);
}

static void spawn_and_check(const plan *p, int ranks)
{
    tr_launch_report report;
    tr_status status = tr_spawn(train_spawned, ranks, .argument = p, .bytes = sizeof *p, .report = &report);
    check_report(p, status == want[p->event].status, &report, status, want[p->event].of_function);
}

static void check_everywhere(event e, int rounds)
{
    static const char *const transports[] = {"shm", "tcp"};
    for (int round = 0; round < rounds; round++)
        for (int ranks = 2; ranks <= 3; ranks++)
            for (int t = 0; t < 2; t++) {
                plan p = {.event = e, .culprit = (round + ranks) % ranks};
                strcpy(p.transport, transports[t]);
                launch_and_check(&p, ranks);
                spawn_and_check(&p, ranks);
            }
}

/* Its victims are told while it still has a scope to end and a message to print: any of them may exit before it. */
static void a_rank_whose_backward_fails_is_named(void **state)
{
    (void)state;
    check_everywhere(BACKWARD_FAILS, 6);
}

static void a_rank_that_fails_elsewhere_is_named(void **state)
{
    (void)state;
    check_everywhere(FORWARD_FAILS, 1);
    check_everywhere(LOADER_FAILS, 1);
    check_everywhere(FAILS, 1);
}

static void a_rank_that_goes_early_is_named(void **state)
{
    (void)state;
    for (event e = RETURNS; e <= DIES; e++) check_everywhere(e, 1);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY;
    if (argc == 5 && strcmp(argv[1], "train") == 0) {
        plan p = {.event = (event)atoi(argv[2]), .culprit = atoi(argv[3])};
        snprintf(p.transport, sizeof p.transport, "%s", argv[4]);
        TR_CHECK(train(&p));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_whose_backward_fails_is_named),
        cmocka_unit_test(a_rank_that_fails_elsewhere_is_named),
        cmocka_unit_test(a_rank_that_goes_early_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
