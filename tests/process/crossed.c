/* crossed: two ranks make their calls in two groups in different orders, so that each waits for the other. */
#include <trireme/comm.h>

#include <stdio.h>
#include <unistd.h>

int main(void)
{
    tr_group *world = tr_join();
    TR_CHECK(tr_status_of(world));
    tr_group *groups[2] = {tr_group_split(world, 0, 0), tr_group_split(world, 0, 0)};
    printf("rank %d is %d\n", tr_rank(world), (int)getpid());
    fflush(stdout);
    float x = 1;
    TR_CHECK(tr_all_reduce(groups[tr_rank(world)], &x, 1));
    TR_CHECK(tr_all_reduce(groups[1 - tr_rank(world)], &x, 1));
    return 0;
}
