/* How a job ended: who failed first, and what its report says. */
#include "launch/job.h"

#include <sys/wait.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned long tr__count_oom_kills(void)
{
    unsigned long count = 0;
    char line[128];
    FILE *f = fopen("/proc/vmstat", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "oom_kill %lu", &count) == 1) break;
    if (f) fclose(f);
    return count;
}

/* Did it fail because it lost another rank? */
static bool is_victim(const tr__job_rank *r)
{
    return !tr__by_signal(r) && r->status == TR_EXIT_PEER;
}

bool tr__job_only_victims(const tr__job *j)
{
    const tr__job_rank *here = j->first >= 0 ? &j->ranks[j->first] : NULL;
    const tr__word *anywhere = j->nodes.count ? tr__nodes_first_failure(&j->nodes) : NULL;
    if (here && !is_victim(here)) return false;
    return anywhere ? !anywhere->signal && anywhere->exit_code == TR_EXIT_PEER : here != NULL;
}

static void describe_death(const tr__job *j, const tr__job_rank *r, char *text, size_t bytes)
{
    int index = (int)(r - j->ranks);
    int n = snprintf(text, bytes, "rank %d (pid %d) ", j->first_rank + index, (int)r->pid);
    if (tr__by_signal(r)) {
        n += snprintf(text + n, bytes - (size_t)n, "was killed by signal %d (%s)%s after %.1f s", r->status,
            strsignal(r->status), r->code == CLD_DUMPED ? ", leaving a core" : "", r->seconds);
        if (r->status == SIGKILL && tr__count_oom_kills() > j->oom_kills)
            snprintf(text + n, bytes - (size_t)n, ", as the kernel ran out of memory and killed for it");
    } else if (r->status < 0) {
        snprintf(text + n, bytes - (size_t)n, "ended; its exit code was taken by another wait() in this program");
    } else {
        /* A shell around the program passes on the signal that killed it in this way. */
        char shell[64] = "";
        if (r->status > 128 && r->status < 128 + NSIG)
            snprintf(shell, sizeof shell, " (128 + signal %d, %s)", r->status - 128, strsignal(r->status - 128));
        snprintf(text + n, bytes - (size_t)n, "exited with %d%s after %.1f s", r->status, shell, r->seconds);
    }
    tr__output_last_lines(&j->output, index, "; its last lines:", text, bytes);
}

static int exit_code_of(const tr__job_rank *r)
{
    return tr__by_signal(r) ? 128 + r->status : r->status;
}

/* Once all have ended. */
static tr__suspects find_suspects(const tr__job *j)
{
    tr__suspects s = {0};
    for (int i = 0; i < j->started; i++) {
        const tr__job_rank *r = &j->ranks[i];
        if (is_victim(r)) continue;
        s.count++;
        s.rank = j->first_rank + i;
        s.exit_code = exit_code_of(r);
        if (s.exit_code) continue;
        s.left++;
        s.left_rank = s.rank;
    }
    return s;
}

/* The first that failed did so because it lost another rank, and it can be told which. */
static bool report_culprit(const tr__job *j)
{
    tr_launch_report *report = j->report;
    tr__suspects suspects = find_suspects(j);
    if (!tr__job_only_victims(j) || !tr__suspects_judge(&suspects, &report->first_rank, &report->exit_code)) return false;
    const tr__job_rank *culprit = &j->ranks[report->first_rank - j->first_rank], *victim = &j->ranks[j->first];
    bool left = report->exit_code == 0;
    report->signal = tr__by_signal(culprit) ? culprit->status : 0;
    snprintf(report->text, sizeof report->text,
        "rank %d (pid %d) %s after %.1f s, though rank %d (pid %d) %s and exited with %d", report->first_rank,
        (int)culprit->pid, left ? "exited with 0" : "went on until it was ended", culprit->seconds,
        j->first_rank + j->first, (int)victim->pid, left ? "still needed it" : "had lost it", TR_EXIT_PEER);
    tr__output_last_lines(&j->output, j->first, "; its last lines:", report->text, sizeof report->text);
    if (j->extra.victim) *j->extra.victim = j->first;
    return true;
}

static tr_status conclude_here(tr__job *j)
{
    tr_launch_report *report = j->report;
    report->seconds = tr__launch_now() - j->start;
    if (j->error) {
        snprintf(report->text, sizeof report->text, "%s", j->error->message);
        return tr__fail_stored(j->error);
    }
    if (j->first >= 0) {
        const tr__job_rank *r = &j->ranks[j->first];
        if (report_culprit(j)) return tr__fail(TR_CHILD, "%s", report->text);
        report->first_rank = j->first_rank + j->first;
        report->signal = tr__by_signal(r) ? r->status : 0;
        report->exit_code = exit_code_of(r);
        describe_death(j, r, report->text, sizeof report->text);
        return tr__fail(TR_CHILD, "%s", report->text);
    }
    if (!j->stopped && !(j->interrupt && j->stage == KILLING)) return TR_OK;
    report->signal = j->interrupt;
    report->exit_code = 128 + j->interrupt;
    snprintf(report->text, sizeof report->text, "stopped by signal %d (%s) after %.1f s", j->interrupt,
        strsignal(j->interrupt), report->seconds);
    return tr__fail(TR_INTERRUPTED, "%s", report->text);
}

void tr__job_tell_nodes(tr__job *j, bool ended)
{
    const tr__job_rank *r = j->first >= 0 ? &j->ranks[j->first] : NULL;
    tr__word word = {.interrupt = j->interrupt, .ended = ended, .told = j->nodes.mine.told};
    word.unable = j->error != NULL;
    word.outcome = r || j->error ? TR__FAILED : j->stopped ? TR__STOPPED : TR__WELL;
    if (r) {
        word.rank = j->first_rank + j->first;
        word.signal = tr__by_signal(r) ? r->status : 0;
        word.exit_code = exit_code_of(r);
        word.at_ms = (int64_t)((j->start + r->seconds) * 1e3) - j->nodes.start_ns / 1000000;
    } else if (j->error) {
        word.rank = j->first_rank + j->started;
        word.exit_code = EXIT_FAILURE;
    }
    if (ended) word.suspects = find_suspects(j);
    if (word.outcome == TR__FAILED && ended && !word.told) {
        tr_launch_report *report = j->report;
        if (j->error) snprintf(report->text, sizeof report->text, "%s", j->error->message);
        else describe_death(j, r, report->text, sizeof report->text);
        word.told = tr__nodes_publish(&j->nodes, report->text);
    }
    tr__nodes_say(&j->nodes, &word);
}

static tr_status conclude_nodes(tr__job *j)
{
    char own[sizeof j->report->text];
    snprintf(own, sizeof own, "%s", j->report->text);
    *j->report = (tr_launch_report){.first_rank = -1, .seconds = tr__launch_now() - j->start};
    return tr__nodes_conclude(&j->nodes, own, j->report);
}

tr_status tr__job_conclude(tr__job *j)
{
    tr_status status = j->nodes.count && !j->gave_up ? conclude_nodes(j) : conclude_here(j);
    tr_printable(j->report->text); /* what ranks have said is in it */
    return status;
}
