/* Processes of a function of this program: what lies between the command and their first all_reduce. `spawn [RANKS]`;
 * bench/peer/spawn.py times it beside torch.multiprocessing.spawn. */
#include <stdio.h>
#include <stdlib.h>
#include <trireme/trireme.h>

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)argument, (void)bytes;
    TR_SCOPE;
    tr_group *world = tr_join();
    float ones[1024];
    for (int i = 0; i < 1024; i++) ones[i] = 1;
    tr_status status = tr_all_reduce(world, ones, 1024);
    if (status != TR_OK) return status;
    if (rank == 0 && (printf("reduced\n") < 0 || fflush(stdout) != 0)) return tr_fail(TR_IO, "cannot print");
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY;
    TR_CHECK(tr_spawn(work, argc > 1 ? atoi(argv[1]) : 4));
    return 0;
}
