/* tr_spawn: a job whose ranks run a function of this program. */
#include "base/object.h"
#include "launch/spawn.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Did rank a's failure cause rank b's, rather than the other way round? A rank that fails leaves its groups before its function
 * has returned, so others may return their TR_PEER sooner than it its reason. */
static bool before(const tr__call *call, int a, int b)
{
    bool a_heard = tr__call_result(call, a) == TR_PEER, b_heard = tr__call_result(call, b) == TR_PEER;
    return a_heard != b_heard ? b_heard : tr__call_returned_ns(call, a) < tr__call_returned_ns(call, b);
}

/* The rank whose failure came first; -1 when none has returned one. */
static int first_failure(const tr__call *call, int ranks)
{
    int first = -1;
    for (int i = 0; i < ranks; i++) {
        if (tr__call_progress_of(call, i) != TR__CALL_RETURNED || tr__call_result(call, i) == TR_OK) continue;
        if (first < 0 || before(call, i, first)) first = i;
    }
    return first;
}

static tr_status report_rank(const tr__call *call, int rank, tr_launch_report *report)
{
    tr_status status = tr__call_result(call, rank);
    tr__fail_context(status, "rank %d", rank);
    report->first_rank = rank;
    snprintf(report->text, sizeof report->text, "%s", tr_error_message());
    return status;
}

/* The launcher has found the rank that the victim lost; what the victim's function said is the message. */
static tr_status report_culprit(const tr__call *call, int victim, tr_launch_report *report)
{
    bool returned = tr__call_progress_of(call, report->first_rank) == TR__CALL_RETURNED;
    const char *what = returned ? "returned, though others still needed it"
                                : "went on until it was ended, though others had lost it";
    tr_status status = tr__call_result(call, victim);
    tr__fail_context(status, "rank %d %s: rank %d", report->first_rank, what, victim);
    snprintf(report->text, sizeof report->text, "%s", tr_error_message());
    return status;
}

/* The launcher tells how processes ended; one that did not return has failed, whatever its exit code. What functions said comes
 * before that. victim: as in tr__launch_extra, or -1. */
static tr_status conclude(const tr__call *call, int ranks, tr_status launched, int victim, tr_launch_report *report)
{
    if (launched != TR_CHILD || (report->signal && victim < 0)) return launched;
    int first = first_failure(call, ranks);
    bool only_victims = first >= 0 && tr__call_result(call, first) == TR_PEER;
    if (victim >= 0 && only_victims) return report_culprit(call, first, report);
    tr__call_progress progress = tr__call_progress_of(call, report->first_rank);
    if (first >= 0 && (!only_victims || progress == TR__CALL_RETURNED)) return report_rank(call, first, report);
    if (progress == TR__CALL_OUTSIDE || !report->exit_code) return report_rank(call, report->first_rank, report);
    return tr__fail(launched, "%s", report->text); /* it exited by itself: "rank 1 (pid 4242) exited with 3 …" */
}

tr_status tr_spawn_with(const tr_spawn_options *options)
{
    tr_spawn_options o = {0};
    tr_launch_report unused;
    memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tr_launch_report *report = o.report ? o.report : &unused;
    *report = (tr_launch_report){.first_rank = -1};
    if (o.ranks < 1 || o.ranks > TR_LAUNCH_MAX_RANKS)
        return tr__fail(TR_INVALID, "spawn: %d ranks: it takes 1 to %d", o.ranks, TR_LAUNCH_MAX_RANKS);
    if (!o.bytes != !o.argument)
        return tr__fail(TR_INVALID, "spawn: .argument, which is %s, comes with its .bytes, not %zu: each rank gets a copy",
            o.argument ? "there" : "NULL", o.bytes);
    if (tr__call_inside()) return tr__fail(TR_STATE, "spawn: a rank of tr_spawn does not spawn in its turn");
    tr__call call;
    TR__TRY(tr__call_make(&call, o.function, o.argument, o.bytes, o.ranks));
    const char *argv[] = {program_invocation_name, NULL};
    const tr_launch_options launch = {
        .size = sizeof launch,
        .given = o.given,
        .argv = argv,
        .ranks = o.ranks,
        .env = o.env,
        .output = o.output,
        .user = o.user,
        .rank0_inherits = o.rank0_inherits,
        .grace_ms = o.grace_ms,
        .pass_signals = o.pass_signals,
        .report = report,
        .job = o.job,
        .log_dir = o.log_dir,
    };
    int victim = -1;
    tr_status launched = tr__launch(&launch, &(tr__launch_extra){.call = &call, .victim = &victim});
    tr_status status = conclude(&call, o.ranks, launched, victim, report);
    tr__call_free(&call);
    return status;
}
