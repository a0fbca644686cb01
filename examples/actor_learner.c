/*
 * Reinforcement learning by actors and a learner: `./actor_learner [--device cuda] [ACTORS [GOAL]]`. Actors on workers play
 * episodes with the policy they are sent; the learner asks all at once, gathers what they saw and did, and updates. The game
 * is cart-pole (Barto, Sutton & Anderson 1983): push a cart so that the pole on it stays up; a point for each step, 200 at
 * most. The learner is REINFORCE (Williams 1992) with normalised returns, until the mean of a round is GOAL, 190. All random
 * numbers have seeds: one process that plays all itself learns the same, which is checked.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

enum { most_actors = 8, episodes = 16, most_steps = 200, most_rounds = 300, most_rows = episodes * most_steps };
static const double discount = 0.99;
static tr_device here; /* where this process computes */
typedef struct settings { char device[16]; int actors; double goal; } settings;

/* ---- The game ---------------------------------------------------------------------------------------------------- */

enum { position, speed, angle, turning, features }; /* what is seen of it */

/* A step of 20 ms. Whether the pole still stands. */
static bool push(double c[features], bool right)
{
    const double gravity = 9.8, mass = 1.1, pole_mass = 0.1, half_length = 0.5, seconds = 0.02;
    double s = sin(c[angle]), k = cos(c[angle]), swing = pole_mass * half_length * c[turning] * c[turning] * s;
    double pushed = ((right ? 10 : -10) + swing) / mass;
    double falling = (gravity * s - k * pushed) / (half_length * (4.0 / 3 - pole_mass * k * k / mass));
    double rolling = pushed - pole_mass * half_length * falling * k / mass;
    const double change[features] = {c[speed], rolling, c[turning], falling};
    for (int i = 0; i < features; i++) c[i] += seconds * change[i];
    return fabs(c[position]) < 2.4 && fabs(c[angle]) < 0.2095;
}

/* [n, 4] -> [n, 2]: how much it is for left and right */
static tr_module *make_policy(void)
{
    tr_module *made = tr_sequential(tr_linear(features, 32, .seed = 1), tr_activation_layer(tr_tanh), tr_linear(32, 2, .seed = 2));
    TR_CHECK(tr_module_to(made, here));
    return made;
}

/* Episodes that go on at the same time, and rows of what was seen and done in them. */
typedef struct game {
    double cart[episodes][features];
    int steps[episodes]; /* that the pole has stood */
    bool over[episodes];
    int rows, step_of[most_rows], episode_of[most_rows];
    float seen[most_rows][features], gained[most_rows];
    int64_t done[most_rows];
} game;

/* One step of all episodes, by one forward. Whether any goes on. */
static bool step_all(game *g, tr_module *policy, uint64_t seed, int step)
{
    TR_SCOPE;
    float seen[episodes][features], left_right[episodes][2], chance[episodes];
    for (int i = 0; i < episodes; i++)
        for (int k = 0; k < features; k++) seen[i][k] = (float)g->cart[i][k];
    tr_tensor *says = tr_softmax(tr_forward(policy, tr_to(tr_from(seen, TR_SHAPE(episodes, features)), here)), 1);
    TR_CHECK(tr_copy_out(says, left_right, sizeof left_right));
    TR_CHECK(tr_copy_out(tr_rand(seed + 1 + (uint64_t)step, TR_SHAPE(episodes)), chance, sizeof chance));
    bool any = false;
    for (int i = 0; i < episodes; i++) {
        if (g->over[i]) continue;
        int row = g->rows++;
        g->done[row] = chance[i] < left_right[i][1];
        g->episode_of[row] = i;
        g->step_of[row] = step;
        for (int k = 0; k < features; k++) g->seen[row][k] = seen[i][k];
        g->steps[i] = step + 1;
        g->over[i] = !push(g->cart[i], g->done[row]);
        any |= !g->over[i];
    }
    return any;
}

/* What is gained from each row on: one point for each step that its episode still lasts, discounted. */
static tr_tensor_list *results(game *g)
{
    for (int i = 0; i < g->rows; i++)
        g->gained[i] = (float)((1 - pow(discount, g->steps[g->episode_of[i]] - g->step_of[i])) / (1 - discount));
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "seen", tr_from(g->seen, TR_SHAPE(g->rows, features))));
    TR_CHECK(tr_list_add(list, "done", tr_from(g->done, TR_SHAPE(g->rows, 1), .dtype = TR_I64)));
    TR_CHECK(tr_list_add(list, "gained", tr_from(g->gained, TR_SHAPE(g->rows, 1))));
    return list;
}

/* What the learner calls: plays with these weights. -> seen: [rows, 4], done: [rows, 1], gained: [rows, 1] */
static tr_tensor_list *play(tr_tensor_list *weights, int64_t number)
{
    TR_NO_GRAD;
    static _Thread_local game g; /* much for a stack */
    float start[episodes][features];
    uint64_t seed = (uint64_t)number * (most_steps + 1);
    tr_module *policy = make_policy();
    TR_CHECK(tr_load_state_dict(policy, weights));
    TR_CHECK(tr_copy_out(tr_rand(seed, TR_SHAPE(episodes, features)), start, sizeof start));
    memset(&g, 0, sizeof g);
    for (int i = 0; i < episodes; i++)
        for (int k = 0; k < features; k++) g.cart[i][k] = 0.1 * start[i][k] - 0.05;
    for (int step = 0; step < most_steps && step_all(&g, policy, seed, step);) step++;
    return results(&g);
}
TR_RPC(play, TENSORS, I64, RETURNS(TENSORS));

/* Has all actors play at the same time; without them, plays for each of them here. */
static void gather(tr_rpc *rpc, tr_module *policy, int actors, int round, tr_tensor_list **played)
{
    tr_tensor_list *weights = tr_state_dict(policy);
    tr_future *asked[most_actors] = {NULL};
    for (int i = 0; i < actors && rpc; i++) {
        char name[32];
        snprintf(name, sizeof name, "actor%d", i);
        asked[i] = tr_rpc_async(rpc, name, "play", weights, (int64_t)round * actors + i);
    }
    for (int i = 0; i < actors; i++)
        played[i] = rpc ? tr_future_tensors(asked[i]) : play(weights, (int64_t)round * actors + i);
}

static tr_tensor *join(tr_tensor_list *const *played, int actors, const char *what)
{
    tr_tensor *parts[most_actors];
    for (int i = 0; i < actors; i++) parts[i] = tr_list_find(played[i], what);
    return tr_to(tr_cat(parts, actors, 0), here);
}

/* A round of episodes and an update. The mean of the episodes' points. */
static double learn(tr_rpc *rpc, tr_module *policy, tr_optimizer *optimizer, int actors, int round)
{
    TR_SCOPE;
    tr_tensor_list *played[most_actors];
    gather(rpc, policy, actors, round, played);
    tr_tensor *gained = join(played, actors, "gained"); /* [rows, 1] */
    tr_tensor *likely = tr_log_softmax(tr_forward(policy, join(played, actors, "seen")), 1);
    tr_tensor *chosen = tr_take_along(likely, 1, join(played, actors, "done")); /* what was done: [rows, 1] */
    tr_tensor *above = tr_sub(gained, tr_mean(gained)), *spread = tr_sqrt(tr_mean(tr_mul(above, above)));
    tr_zero_grad(optimizer);
    TR_CHECK(tr_backward(tr_neg(tr_mean(tr_mul(chosen, tr_div(above, spread))))));
    TR_CHECK(tr_step(optimizer));
    return (double)tr_size(gained, 0) / (actors * episodes); /* a point for each row */
}

/* Learns until the mean is the goal. The rounds that it took; -1: too many. */
static int reach_goal(tr_rpc *rpc, tr_module *policy, const settings *s)
{
    tr_optimizer *optimizer = tr_adam(tr_parameters(policy), .lr = 0.01);
    for (int round = 0; round < most_rounds; round++)
        if (learn(rpc, policy, optimizer, s->actors, round) >= s->goal) return round + 1;
    return -1;
}

static tr_status run_learner(tr_rpc *rpc, const settings *s)
{
    TR_SCOPE;
    tr_module *policy = make_policy(), *twin = make_policy();
    int rounds = reach_goal(rpc, policy, s), twin_rounds = reach_goal(NULL, twin, s);
    TR_NO_GRAD;
    double difference = 0;
    tr_tensor_list *mine = tr_parameters(policy), *its = tr_parameters(twin);
    for (int i = 0; i < tr_list_count(mine); i++)
        difference += tr_item(tr_max(tr_abs(tr_sub(tr_list_at(mine, i), tr_list_at(its, i)))));
    printf("%d rounds of %d episodes to a mean of %.0f points\nweights differ from those of one process by %.1e\n", rounds,
        s->actors * episodes, s->goal, difference);
    if (rounds > 0 && rounds == twin_rounds && difference < 1e-4) return TR_OK;
    return tr_fail(TR_STATE, "%d rounds, %d in one process, weights differ by %g", rounds, twin_rounds, difference);
}

static tr_status work(int rank, void *argument, size_t bytes)
{
    (void)bytes;
    TR_SCOPE;
    const settings *s = argument;
    char name[32] = "learner";
    if (rank > 0) snprintf(name, sizeof name, "actor%d", rank - 1);
    tr_group *world = tr_join();
    TR_CHECK(tr_group_device_named(world, s->device, &here));
    tr_rpc *rpc = tr_rpc_start(world, .name = name);
    TR_CHECK(tr_rpc_register(rpc, &play_rpc));
    TR_CHECK(tr_barrier(world)); /* all can be called */
    if (rank == 0) TR_CHECK(run_learner(rpc, s));
    TR_CHECK(tr_rpc_stop(rpc)); /* the actors play until all have called it */
    return tr_leave(world);
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY; /* the processes leave main() here */
    settings s = {"cpu", .actors = 2, .goal = 190};
    for (; argc > 2 && strcmp(argv[1], "--device") == 0; argc -= 2, argv += 2)
        snprintf(s.device, sizeof s.device, "%s", argv[2]);
    if (argc > 1) s.actors = atoi(argv[1]);
    if (argc > 2) s.goal = atof(argv[2]);
    if (s.actors < 1 || s.actors > most_actors) return fprintf(stderr, "1 to %d actors\n", most_actors), 2;
    if (!(s.goal > 0)) return fprintf(stderr, "a goal of steps above 0, such as 190\n"), 2;
    TR_CHECK(tr_spawn(work, 1 + s.actors, .argument = &s, .bytes = sizeof s, .pass_signals = true));
    return 0;
}
