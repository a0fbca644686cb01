/*
 * Steps in backward under DDP, with ranks that are processes: one is killed in the middle of a backward, when some buckets have been
 * applied and others are on their way.
 *
 * ctest: serial
 */
#include "base/clock.h"
#include "processes.h"

#include <trireme/trireme.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LAYERS = 8, VICTIM = 1, FATAL_STEP = 2 };

typedef struct pause_at {
    rank *r;
    bool pauses;
} pause_at;

/* The parent kills this rank, which says that its backward has come here, and goes no further. */
static tr_status wait_for_the_end(tr_tensor *leaf, tr_tensor *grad, void *user)
{
    (void)leaf, (void)grad;
    pause_at *at = user;
    if (!at->pauses) return TR_OK;
    atomic_fetch_add(&at->r->post->turns, 1);
    for (;;) pause();
}

static tr_status train(rank *r)
{
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(32, 64, .seed = 1));
    for (uint64_t i = 0; i < LAYERS; i++) tr_module_add(net, (char[]){(char)('a' + i), 0}, tr_linear(64, 64, .seed = 10 + i));
    tr_optimizer *optimizer = tr_adamw(tr_parameters(net), .lr = 1e-2);
    tr_module *ddp = tr_ddp(net, r->group, .bucket_mb = 0.02); /* a bucket for every two layers */
    TRY(tr_status_of(ddp));
    TRY(tr_step_in_backward(optimizer, true));
    pause_at at = {.r = r};
    CHECK(tr_grad_hook_add(tr_list_find(tr_parameters(net), "b.weight"), wait_for_the_end, &at) >= 0);
    for (int step = 0;; step++) {
        TR_SCOPE;
        at.pauses = r->number == VICTIM && step == FATAL_STEP;
        tr_tensor *y = tr_forward(ddp, tr_randn((uint64_t)(step * r->world + r->number), TR_SHAPE(5, 32)));
        tr_status status = tr_backward(tr_mean(tr_mul(y, y)));
        if (status == TR_OK) {
            TRY(tr_step(optimizer));
            continue;
        }
        char why[1024];
        snprintf(why, sizeof why, "%s", tr_error_message());
        tr_tensor_list *list = tr_parameters(net);
        CHECK(step == FATAL_STEP);
        for (int i = 0; i < tr_list_count(list); i++) CHECK(tr_status_of(tr_grad(tr_list_at(list, i))) == TR_STATE);
        CHECK(tr_step(optimizer) == TR_STATE);
        SAYS("load a checkpoint");
        return tr_fail(status, "%s", why);
    }
}

static void a_rank_that_is_killed_fails_the_backward_of_all(void **state)
{
    (void)state;
    const char *const words[3] = {"all_reduce", "adamw steps in backward, and had updated ", " of its 18 parameters when it failed"};
    for (int world = 2; world <= 3; world++) {
        job j;
        start_job(&j, world, train, NULL);
        await_turns(&j, VICTIM, 1);
        int64_t killed = tr__now_ns();
        kill(j.ranks[VICTIM].pid, SIGKILL);
        for (int i = 0; i < world; i++) reap(&j, i);
        for (int i = 0; i < world; i++)
            if (i != VICTIM) check_survivor(&j, i, VICTIM, killed, words);
        finish(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_that_is_killed_fails_the_backward_of_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
