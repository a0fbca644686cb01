/*
 * A program that launches itself: without a launcher around it, it starts the ranks, and shows why they failed if they do.
 * `./launch [RANKS]`, or `trireme run -n 4 ./launch`
 */
#include <stdio.h>
#include <stdlib.h>
#include <trireme/trireme.h>

/* What each rank does: adds up the ranks' numbers. */
static tr_status work(void)
{
    TR_SCOPE;
    tr_group *world = tr_join();
    double sum = tr_rank(world);
    tr_status status = tr_all_reduce(world, &sum, 1, .dtype = TR_F64);
    if (status != TR_OK) return status;
    printf("rank %d of %d: the sum of all ranks is %g\n", tr_rank(world), tr_world_size(world), sum);
    return tr_leave(world);
}

static void show(int rank, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)user;
    fprintf(is_stderr ? stderr : stdout, "[%d] %.*s\n", rank, (int)length, line);
}

int main(int argc, char **argv)
{
    if (getenv("RANK")) { /* started by a launcher */
        TR_CHECK(work());
        return 0;
    }
    const char *const command[] = {"/proc/self/exe", NULL};
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    tr_launch_report report;
    tr_status status = tr_launch(command, ranks, .output = show, .pass_signals = true, .report = &report);
    if (status == TR_OK) return 0;
    fprintf(stderr, "%s\n", tr_error_message());
    return status == TR_INTERRUPTED ? report.exit_code : 1;
}
