#include "relaunch.h"

#include "options.h"
#include "terminal.h"

#include <trireme/comm.h>
#include <trireme/launch.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_line(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)is_stderr, (void)user;
    char tag[32];
    snprintf(tag, sizeof tag, "%s[%d] ", isatty(STDERR_FILENO) ? "\r\033[K" : "", rank);
    tr__print_line(STDERR_FILENO, tag, line, length);
}

/* Ranks that failed by themselves have said why; of those that were killed somebody else must tell. */
static int conclude(const char *command, tr_status status, const tr_launch_report *r)
{
    if (status == TR_OK) return TR__EXIT_OK;
    if (status == TR_INTERRUPTED) return r->exit_code;
    bool told = status == TR_CHILD && !r->signal && r->exit_code == TR__EXIT_FAILED;
    if (!told && isatty(STDERR_FILENO)) fputc('\n', stderr); /* a progress bar's line may be open */
    if (status == TR_CHILD && r->exit_code == TR_EXIT_PEER)
        tr__complain(command, "rank %d lost the others, and none of them said why", r->first_rank);
    else if (!told)
        tr__complain(command, "%s", tr_error_message());
    return TR__EXIT_FAILED;
}

bool tr__is_rank(int *rank, int *world_size, int *local_world_size)
{
    int world;
    bool launched = tr_launched(rank, &world, local_world_size);
    if (world_size) *world_size = world;
    return launched && (world > 1 || getenv("RANK"));
}

int tr__check_device(const char *command, const char *device, const char *backend, int ranks)
{
    tr_device parsed;
    if (tr_device_parse(device, &parsed) != TR_OK) return tr__complain(command, "--device: %s", tr_error_message());
    if (strcmp(backend, "mpi") == 0 && ranks > 1 && !tr__is_rank(NULL, NULL, NULL))
        return TR__MISUSE(command, "--backend mpi: MPI knows nothing of ranks that --ranks starts: begin with mpirun -n %d and "
            "leave --ranks out, or leave --backend out", ranks);
    if (strcmp(backend, "nccl") == 0 && parsed.kind != TR_CUDA)
        return TR__MISUSE(command, "--backend nccl: NCCL is for ranks on GPUs: add --device cuda, or take native or mpi");
    return -1;
}

int tr__relaunch(const char *command, const char **argv, int ranks, int max_restarts, int min_ranks, const char *const *env)
{
    char self[PATH_MAX];
    argv[0] = realpath("/proc/self/exe", self) ? self : "/proc/self/exe";
    tr__print_warnings(command);
    tr_launch_report report = {0};
    tr_status status = tr_launch((const char *const *)argv, ranks, .env = env, .output = print_line, .rank0_inherits = true,
        .pass_signals = true, .report = &report, .max_restarts = max_restarts, .min_ranks = min_ranks);
    return conclude(command, status, &report);
}
