/*
 * remote UNTIL [gone]: rank 0, "front", trains a layer of its own and one on rank 1, "back", with distributed backward and step, until
 * the file UNTIL is there; with "gone" it then exits without tr_rpc_stop(), as if it were done. Each rank says its process id, and
 * rank 0 when it has made its first step.
 */
#include <trireme/trireme.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *head(void) { return tr_linear(8, 2, .seed = 2); }
TR_RPC(head, RETURNS(OBJECT));

static void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

static tr_status step(tr_rpc *rpc, tr_module *net, tr_dist_optimizer *optimizer, uint64_t number)
{
    TR_SCOPE;
    TR_DIST_CONTEXT(rpc, context);
    tr_tensor *y = tr_forward(net, tr_randn(number, TR_SHAPE(4, 8)));
    tr_status status = tr_dist_backward(context, tr_mean(tr_mul(y, y)));
    return status == TR_OK ? tr_dist_step(optimizer, context) : status;
}

static void train(tr_rpc *rpc, const char *until)
{
    TR_SCOPE;
    tr_module *net = tr_sequential(tr_linear(8, 8, .seed = 1), tr_remote_module(tr_remote(rpc, "back", "head")));
    tr_rref *parameters[8];
    int n = tr_dist_parameters(rpc, net, parameters, 8);
    tr_dist_optimizer *optimizer = tr_dist_optimizer_new(rpc, parameters, n, TR_DIST_ADAM(.lr = 1e-3));
    TR_CHECK(tr_status_of(optimizer));
    for (uint64_t number = 0; access(until, F_OK) != 0; number++) {
        TR_CHECK(step(rpc, net, optimizer, number));
        if (number == 0) say("rank 0 trains");
    }
}

int main(int argc, char **argv)
{
    tr_group *world = tr_join();
    TR_CHECK(tr_status_of(world));
    int rank = tr_rank(world);
    tr_rpc *rpc = tr_rpc_start(world, .name = rank == 0 ? "front" : "back");
    TR_CHECK(tr_dist_start(rpc));
    TR_CHECK(tr_rpc_register(rpc, &head_rpc));
    TR_CHECK(tr_barrier(world));
    char line[64];
    snprintf(line, sizeof line, "rank %d is %d", rank, (int)getpid());
    say(line);
    if (rank == 0) train(rpc, argv[1]);
    if (rank == 0 && argc > 2 && strcmp(argv[2], "gone") == 0) _exit(0);
    TR_CHECK(tr_rpc_stop(rpc));
    TR_CHECK(tr_leave(world));
    return EXIT_SUCCESS;
}
