/*
 * Trials (trial.h): random ones, and a sweep through every collective, way, fault and phase. Without arguments it is a
 * short share of both. Arguments, for `make soak` and for looking into a failure:
 *
 *   -runs=N -seed=S   only N random trials, with seeds S, S + 1, …; -runs=1 with a seed that was printed repeats one;
 *                     from 2^33 on they are on several pretended hosts, from 2^34 on there and while joining, and from
 *                     2^35 on between network namespaces
 *   -phases=P         only the sweep, with P phases of each call, and every way
 *
 * ctest: serial timeout=180
 */
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static unsigned long long runs = 24, first_seed = 1;
static int phases; /* 0: a short sweep */

static int ran, failed;

static void try_seed(uint64_t seed)
{
    static const char *const faults[TRIAL_FAULTS] = {"nothing", "a delay", "a pause", "a stop", "a kill", "a cut link",
        "a link that is cut for good"};
    char wrong[TRIAL_TEXT];
    trial t = trial_of(seed);
    ran++;
    if (trial_run(&t, wrong)) return;
    failed++;
    print_error("trial -runs=1 -seed=%llu: %d ranks, %s%s%s, call %d, %s of rank %d in turn %d of %d (+%d us, phase %d):\n%s",
        (unsigned long long)seed, t.world, t.spaces ? "namespaces" : t.hosts ? "several hosts" : t.transport,
        t.netem[0] ? " with " : "", t.netem, t.kind, faults[t.fault], t.victim, t.moment, t.turns, t.delay_us, t.phase, wrong);
}

static void sum_up(const char *what)
{
    print_message("%d trials%s, %d failed; a kill was known after %.1f ms at most\n", ran, what, failed,
        trial_slowest_ms());
    int bad = failed;
    ran = failed = 0;
    assert_int_equal(bad, 0);
}

static void go_to_namespaces(void)
{
    trials_end();
    if (trials_begin(true)) return;
    assert_true(trials_begin(false));
    print_message("network namespaces cannot be made here, which takes root: skipped\n");
    skip();
}

static void random_trials_go_well(void **state)
{
    (void)state;
    if (first_seed >= TRIAL_SPACES) go_to_namespaces();
    for (unsigned long long i = 0; i < runs; i++) try_seed(first_seed + i);
    sum_up(" at random");
}

static void random_trials_on_several_hosts_go_well(void **state)
{
    (void)state;
    for (unsigned long long i = 0; i < 8; i++) try_seed(TRIAL_HOSTS + first_seed + i);
    sum_up(" on several hosts");
}

/* None that ends by a timeout, or lasts as long as a link is cut. */
static bool is_quick(const trial *t)
{
    bool lasts = t->fault == TRIAL_STOP || t->fault == TRIAL_CUT || t->fault == TRIAL_SEVER;
    return !lasts && (t->moment > 0 || t->fault != TRIAL_KILL || trial_is_seen(t));
}

static void try_quick(uint64_t seed, int count)
{
    while (count > 0) {
        trial t = trial_of(seed);
        if (is_quick(&t)) try_seed(seed), count--;
        seed++;
    }
}

static void who_dies_while_several_hosts_join_is_named(void **state)
{
    (void)state;
    try_quick(TRIAL_JOINS + first_seed, 8);
    sum_up(" while joining");
}

static void random_trials_between_namespaces_go_well(void **state)
{
    (void)state;
    go_to_namespaces();
    try_quick(TRIAL_SPACES + first_seed, 6);
    sum_up(" between namespaces");
}

/* A rank dies and stops at each phase of each call. The short sweep stops every call in one of the ways only. */
static void every_phase_of_every_call_may_be_the_last(void **state)
{
    (void)state;
    int count = phases ? phases : 1;
    for (int kind = 0; kind < TR_COLLECTIVE_COUNT; kind++) {
        for (int way = 0; way < TRIAL_WAYS; way++) {
            for (int i = 0; i < count; i++) {
                int phase = phases ? 256 * i / count : (kind * 97 + way * 31) % 256;
                try_seed(trial_sweep_seed((tr_collective_kind)kind, way, TRIAL_KILL, phase));
                if (phases || way == kind % TRIAL_WAYS)
                    try_seed(trial_sweep_seed((tr_collective_kind)kind, way, TRIAL_STOP, phase));
            }
        }
    }
    sum_up(" of the sweep");
}

static int begin(void **state)
{
    (void)state;
    return trials_begin(false) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    trials_end();
    return 0;
}

int main(int argc, char **argv)
{
    bool only_runs = false;
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-runs=%llu", &runs) == 1)
            only_runs = true;
        else if (sscanf(argv[i], "-seed=%llu", &first_seed) != 1 && sscanf(argv[i], "-phases=%d", &phases) != 1)
            return fprintf(stderr, "%s [-runs=N [-seed=S]] [-phases=P]\n", argv[0]), 2;
    }
    const struct CMUnitTest all[] = {
        cmocka_unit_test(random_trials_go_well),
        cmocka_unit_test(random_trials_on_several_hosts_go_well),
        cmocka_unit_test(who_dies_while_several_hosts_join_is_named),
        cmocka_unit_test(every_phase_of_every_call_may_be_the_last),
        cmocka_unit_test(random_trials_between_namespaces_go_well),
    };
    const struct CMUnitTest one[] = {cmocka_unit_test(random_trials_go_well)};
    const struct CMUnitTest sweep[] = {cmocka_unit_test(every_phase_of_every_call_may_be_the_last)};
    if (only_runs) return cmocka_run_group_tests(one, begin, end);
    if (phases) return cmocka_run_group_tests(sweep, begin, end);
    return cmocka_run_group_tests(all, begin, end);
}
