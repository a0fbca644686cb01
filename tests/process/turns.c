/*
 * turns UNTIL [STOP_AT]: all_reduces, one per millisecond, until the file UNTIL is there. Before its all_reduce number
 * STOP_AT, the last rank stops itself as ^Z would. Each rank says its process id at the beginning, and "ended" at the end.
 */
#include <trireme/comm.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int stop_at = argc > 2 ? atoi(argv[2]) : 0;
    tr_group *world = tr_join();
    TR_CHECK(tr_status_of(world));
    printf("rank %d is %d\n", tr_rank(world), (int)getpid());
    fflush(stdout);
    float over = 0;
    for (int turn = 1; over == 0; turn++) {
        if (turn == stop_at && tr_rank(world) == tr_world_size(world) - 1) raise(SIGSTOP);
        usleep(1000);
        over = tr_rank(world) == 0 && access(argv[1], F_OK) == 0;
        TR_CHECK(tr_all_reduce(world, &over, 1));
    }
    TR_CHECK(tr_leave(world));
    printf("ended\n");
    return 0;
}
