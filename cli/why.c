/* trireme why: what the ranks of running jobs do, which rank waits for which, and the likely culprit. */
#include "command.h"
#include "options.h"

#include <trireme/comm.h>

#include <stdio.h>
#include <stdlib.h>

int tr__cli_why(int argc, char **argv)
{
    const tr__option options[] = {{0}};
    const tr__syntax syntax = {"why", "[JOB]",
        "Shows the call of each rank and since when it lasts, which rank waits for which, and the likely culprit, in your jobs\n"
        "on this host. JOB is a job's name, or the process id of its launcher or of a rank; without it all jobs are shown.\n"
        "The ranks are not asked, so they may hang or be stopped.",
        options, .operands = {0, 1}};
    int status = tr__parse(&syntax, &argc, argv);
    if (status >= 0) return status;

    char *text;
    if (tr_job_explain(argc > 0 ? argv[0] : NULL, &text) != TR_OK) return tr__failed("why");
    fputs(text, stdout);
    free(text);
    return tr__printed("why");
}
