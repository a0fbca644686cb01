/* trireme run: starts a program as the ranks of a job, shows their output, and says why a job failed. */
#include "command.h"
#include "options.h"

#include <trireme/launch.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* One system call per line, so that lines of ranks never mix. What cannot be written (a full disk) is lost: the job is
 * worth more than its output. */
static void print_line(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    char tag[32];
    int tag_length = snprintf(tag, sizeof tag, "[%*d] ", *(int *)user, rank);
    struct iovec parts[] = {{tag, (size_t)tag_length}, {(char *)line, length}, {"\n", 1}};
    struct iovec *part = parts, *end = parts + 3;
    while (part < end) {
        ssize_t put = writev(is_stderr ? STDERR_FILENO : STDOUT_FILENO, part, (int)(end - part));
        if (put < 0 && errno != EINTR) return;
        for (; part < end && put >= (ssize_t)part->iov_len; part++) put -= (ssize_t)part->iov_len;
        if (part < end && put > 0) {
            part->iov_base = (char *)part->iov_base + put;
            part->iov_len -= (size_t)put;
        }
    }
}

int tr__cli_run(int argc, char **argv)
{
    int ranks = 1;
    double grace = 1;
    bool no_prefix = false;
    const char *job = NULL, *flight_dir = NULL;
    const tr__option options[] = {
        {"ranks", 'n', "N", "processes to start", TR__INTEGER(&ranks, 1, TR_LAUNCH_MAX_RANKS)},
        {"grace", 0, "SECONDS", "how long ranks get to end when another one failed", TR__NUMBER(&grace, 0.001, 3600)},
        {"no-prefix", 0, NULL, "let the ranks write to this terminal themselves", TR__FLAG(&no_prefix)},
        {"job", 0, "NAME", "the job's name, for trireme why; this process's id when not given", TR__TEXT(&job)},
        {"flight-dir", 0, "FOLDER", "where ranks write their latest calls when a collective fails", TR__TEXT(&flight_dir)},
        {0},
    };
    const tr__syntax syntax = {"run", "PROGRAM [ARGUMENT…]",
        "Runs PROGRAM as the ranks of a job on this machine, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and\n"
        "MASTER_PORT set. When one rank fails, the others are ended, and it is said which one failed first and why.",
        options, .operands = {1, INT_MAX}, .stop_at_operand = true};
    int status = tr__parse(&syntax, &argc, argv);
    if (status >= 0) return status;

    int width = snprintf(NULL, 0, "%d", ranks - 1);
    char setting[PATH_MAX + 32];
    snprintf(setting, sizeof setting, "TRIREME_FLIGHT_DIR=%s", flight_dir ? flight_dir : "");
    const char *env[] = {flight_dir ? setting : NULL, NULL};
    tr_launch_report report;
    tr_status launched = tr_launch((const char *const *)argv, ranks, .output = no_prefix ? NULL : print_line,
        .user = &width, .env = env, .grace_ms = (int)(grace * 1000), .pass_signals = true, .report = &report, .job = job);
    if (launched == TR_OK) return TR__EXIT_OK;
    tr__complain("run", "%s", *report.text ? report.text : tr_error_message());
    return launched == TR_INTERRUPTED ? report.exit_code : TR__EXIT_FAILED;
}
