/*
 * Backwards over several workers without a transport: messages wait in a list and are delivered in random order. Random
 * programs over random workers must leave the gradients that one process gets. ctest: timeout=240
 */
#include "parallel/dist/part.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKERS_MOST = 5, MATRIX = 2, LEAVES, VALUES_MOST = 64, WIDTH = 3 }; /* the last leaf is one */

/* ---- A network --------------------------------------------------------------------------------------------------- */

/* A message or an answer on its way. */
typedef struct packet {
    int from, to;
    tr__dist_message message; /* with copies of what it points at */
    int64_t numbers[64];
    tr_tensor *gradients[TR__DIST_TENSORS];
    bool is_answer;
    void *token;
    tr_status status;
    char text[512];
} packet;

typedef struct network network;
typedef struct node {
    tr__dist dist;
    network *network;
    int self;
    bool dead;
} node;

struct network {
    pthread_mutex_t lock;
    int workers;
    node nodes[WORKERS_MOST];
    packet **packets;
    size_t count, capacity;
    int busy;           /* packets being delivered */
    uint64_t random;
    int64_t sent[TR__DIST_KINDS];
};

/* A call that waits for its answer. */
typedef struct pending {
    int from, at;
    void *token;
} pending;

static uint64_t draw(network *net, uint64_t below)
{
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return net->random % below;
}

static void post(network *net, packet *l)
{
    pthread_mutex_lock(&net->lock);
    if (net->count == net->capacity) {
        net->capacity = net->capacity ? 2 * net->capacity : 64;
        net->packets = realloc(net->packets, net->capacity * sizeof *net->packets);
    }
    net->packets[net->count++] = l;
    pthread_mutex_unlock(&net->lock);
}

static void post_answer(network *net, int to, void *token, tr_status status, const char *text)
{
    if (!token) return;
    packet *l = calloc(1, sizeof *l);
    *l = (packet){.to = to, .is_answer = true, .token = token, .status = status};
    snprintf(l->text, sizeof l->text, "%s", text);
    post(net, l);
}

static void send_packet(void *user, int to, const tr__dist_message *m, void *token)
{
    node *n = user;
    network *net = n->network;
    packet *l = calloc(1, sizeof *l);
    *l = (packet){.from = n->self, .to = to, .message = *m, .token = token};
    if (m->n_numbers > 64) abort();
    if (m->n_numbers) memcpy(l->numbers, m->numbers, (size_t)m->n_numbers * sizeof *m->numbers);
    for (int i = 0; i < m->n_gradients; i++) l->gradients[i] = tr_keep(m->gradients[i]);
    l->message.numbers = l->numbers;
    l->message.gradients = l->gradients;
    snprintf(l->text, sizeof l->text, "%s", m->text ? m->text : "");
    l->message.text = l->text;
    pthread_mutex_lock(&net->lock);
    net->sent[m->kind]++;
    pthread_mutex_unlock(&net->lock);
    post(net, l);
}

static void answer_packet(void *user, void *call, tr_status status, const char *text)
{
    node *n = user;
    pending *p = call;
    if (n->dead)
        post_answer(n->network, p->from, p->token, TR_PEER, "it died");
    else
        post_answer(n->network, p->from, p->token, status, text);
    free(p);
}

static void start(network *net, int workers, uint64_t seed)
{
    *net = (network){.workers = workers, .random = seed * 0x9e3779b97f4a7c15u + 1};
    pthread_mutex_init(&net->lock, NULL);
    for (int i = 0; i < workers; i++) {
        net->nodes[i].network = net;
        net->nodes[i].self = i;
        tr__dist_init(&net->nodes[i].dist, &(tr__dist_port){&net->nodes[i], i, workers, send_packet, answer_packet});
    }
}

static void stop(network *net)
{
    assert_int_equal(net->count, 0);
    for (int i = 0; i < net->workers; i++) tr__dist_end(&net->nodes[i].dist);
    free(net->packets);
    pthread_mutex_destroy(&net->lock);
}

static void deliver(network *net, packet *l)
{
    node *n = &net->nodes[l->to];
    pending *p = NULL;
    if (!l->is_answer) {
        p = malloc(sizeof *p);
        *p = (pending){l->from, l->to, l->token};
    }
    if (l->is_answer)
        tr__dist_answered(l->token, l->status, l->text);
    else if (n->dead)
        answer_packet(n, p, TR_PEER, "");
    else
        tr__dist_handle(&n->dist, l->from, &l->message, p);
    for (int i = 0; i < l->message.n_gradients; i++) tr_release(l->gradients[i]);
    free(l);
}

/* Takes any packet out; NULL: none. */
static packet *take(network *net)
{
    pthread_mutex_lock(&net->lock);
    packet *l = NULL;
    if (net->count) {
        size_t at = draw(net, net->count);
        l = net->packets[at];
        net->packets[at] = net->packets[--net->count];
        net->busy++;
    }
    pthread_mutex_unlock(&net->lock);
    return l;
}

static bool quiet(network *net)
{
    pthread_mutex_lock(&net->lock);
    bool is = net->count == 0 && net->busy == 0;
    pthread_mutex_unlock(&net->lock);
    return is;
}

static void *deliver_all(void *arg)
{
    network *net = arg;
    while (!quiet(net)) {
        packet *l = take(net);
        if (!l) continue;
        deliver(net, l);
        pthread_mutex_lock(&net->lock);
        net->busy--;
        pthread_mutex_unlock(&net->lock);
    }
    return NULL;
}

static void deliver_with(network *net, int threads)
{
    pthread_t thread[4];
    for (int i = 1; i < threads; i++) pthread_create(&thread[i], NULL, deliver_all, net);
    deliver_all(net);
    for (int i = 1; i < threads; i++) pthread_join(thread[i], NULL);
}

/* Delivers until nothing is left to do for the backward of a context. */
static void deliver_backward(network *net, tr_dist_context *c, int threads)
{
    deliver_with(net, threads);
    while (tr__dist_marked(c)) {
        tr__dist_continue(c);
        deliver_with(net, threads);
    }
}

/* ---- A program, on the workers and in one process ---------------------------------------------------------------- */

typedef struct value {
    int at;
    tr_tensor *there, *twin; /* on the worker, and in the process that does it all */
} value;

typedef struct program {
    network *net;
    tr_dist_context *contexts[WORKERS_MOST]; /* references */
    tr_tensor *leaves[WORKERS_MOST][LEAVES], *twins[WORKERS_MOST][LEAVES];
    value values[VALUES_MOST];
    int n_values;
} program;

static tr_tensor *leaf(uint64_t seed, bool is_matrix)
{
    tr_shape shape = is_matrix ? TR_SHAPE(WIDTH, WIDTH) : TR_SHAPE(WIDTH);
    return tr_require_grad(tr_randn(seed, shape, .dtype = TR_F64));
}

/* By a leaf. */
static tr_tensor *multiply(tr_tensor *x, tr_tensor *by)
{
    return tr_ndim(by) == 2 ? tr_matmul(x, by) : tr_mul(x, by);
}

static void begin(program *p, network *net)
{
    *p = (program){.net = net};
    p->contexts[0] = tr__dist_context_new(&net->nodes[0].dist);
    for (int w = 0; w < net->workers; w++)
        for (int i = 0; i < LEAVES; i++) {
            uint64_t seed = (uint64_t)(w * LEAVES + i + 1);
            p->leaves[w][i] = leaf(seed, i == MATRIX);
            p->twins[w][i] = leaf(seed, i == MATRIX);
            if (w == 0 && i < MATRIX) p->values[p->n_values++] = (value){0, p->leaves[0][i], p->twins[0][i]};
        }
}

static void end(program *p)
{
    tr__dist_context_release(p->contexts[0]);
    deliver_with(p->net, 1);
    for (int w = 0; w < p->net->workers; w++) {
        if (p->contexts[w]) assert_null(tr__dist_context_find(&p->net->nodes[w].dist, p->contexts[w]->id, false));
        tr_release(p->contexts[w]);
    }
}

static tr_dist_context *context_at(program *p, int worker)
{
    if (!p->contexts[worker])
        p->contexts[worker] = tr__dist_context_find(&p->net->nodes[worker].dist, p->contexts[0]->id, true);
    return p->contexts[worker];
}

/* Sends a tensor from worker to worker; *number: as what. */
static tr_tensor *travel(program *p, int from, int to, bool is_reply, tr_tensor *x, int64_t *number)
{
    assert_int_equal(tr__dist_sends(context_at(p, from), to, is_reply, &x, 1, number), TR_OK);
    tr_tensor *view = tr_detach(x);
    assert_int_equal(tr__dist_receives(context_at(p, to), from, *number, &view, 1), TR_OK);
    return view;
}

static void add_value(program *p, int at, tr_tensor *there, tr_tensor *twin)
{
    if (p->n_values < VALUES_MOST) p->values[p->n_values++] = (value){at, there, twin};
}

/* Calls a worker with a value: it multiplies it by a leaf, may call a third worker with that, and gives it back or not. */
static value call(program *p, value x, int worker, int depth)
{
    network *net = p->net;
    int64_t asked, replied;
    int i = (int)draw(net, LEAVES);
    tr_tensor *y = multiply(travel(p, x.at, worker, false, x.there, &asked), p->leaves[worker][i]);
    tr_tensor *twin = multiply(x.twin, p->twins[worker][i]);
    value made = {worker, tr_tanh(y), tr_tanh(twin)};
    if (depth && draw(net, 3) == 0) {
        value deeper = call(p, made, (int)draw(net, (uint64_t)net->workers), depth - 1);
        if (deeper.there) made = (value){worker, tr_add(made.there, deeper.there), tr_add(made.twin, deeper.twin)};
    }
    if (draw(net, 4) == 0) { /* it keeps it: as what a remote reference leads to */
        add_value(p, worker, made.there, made.twin);
        return (value){0};
    }
    tr_tensor *back = travel(p, worker, x.at, true, made.there, &replied);
    tr__dist_was_answered(context_at(p, x.at), asked, 1);
    return (value){x.at, back, made.twin};
}

static void run_step(program *p)
{
    network *net = p->net;
    value x = p->values[draw(net, (uint64_t)p->n_values)], z = p->values[draw(net, (uint64_t)p->n_values)];
    int64_t number;
    switch (draw(net, 8)) {
    case 0: /* of two values of one worker */
        if (x.at == z.at) add_value(p, x.at, tr_add(x.there, z.there), tr_add(x.twin, z.twin));
        break;
    case 1: /* a call that never arrives */
        assert_int_equal(tr__dist_sends(context_at(p, x.at), (int)draw(net, (uint64_t)net->workers), false, &x.there, 1,
            &number), TR_OK);
        break;
    default: {
        value y = call(p, x, (int)draw(net, (uint64_t)net->workers), 2);
        if (y.there) add_value(p, y.at, y.there, y.twin);
    }
    }
}

/* The sum of some of the values, fetched to worker 0. */
static value sum_up(program *p)
{
    value root = {0, tr_mul(p->leaves[0][0], p->leaves[0][1]), tr_mul(p->twins[0][0], p->twins[0][1])};
    int64_t number;
    for (int i = p->n_values - 1; i >= 0; i -= 1 + (int)draw(p->net, 4)) {
        value v = p->values[i];
        tr_tensor *here = v.at ? travel(p, v.at, 0, true, v.there, &number) : v.there;
        root = (value){0, tr_add(root.there, here), tr_add(root.twin, v.twin)};
    }
    return (value){0, tr_sum(root.there), tr_sum(root.twin)};
}

static double difference(tr_tensor *a, tr_tensor *b)
{
    return tr_item(tr_max(tr_abs(tr_sub(a, b))));
}

static void check_leaves(program *p, uint64_t seed)
{
    for (int w = 0; w < p->net->workers; w++)
        for (int i = 0; i < LEAVES; i++) {
            tr_tensor *got = p->contexts[w] ? tr_dist_grad(p->contexts[w], p->leaves[w][i]) : NULL;
            tr_tensor *want = tr_grad(p->twins[w][i]);
            assert_null(tr_grad(p->leaves[w][i]));
            if (!got != !want) fail_msg("seed %d: leaf %d of worker %d: %s", (int)seed, i, w, got ? "one too many" : "none");
            if (got && difference(got, want) > 1e-12)
                fail_msg("seed %d: leaf %d of worker %d is off by %g", (int)seed, i, w, difference(got, want));
        }
}

static void run_program(uint64_t seed, bool smart, int threads)
{
    TR_SCOPE;
    network net;
    start(&net, 2 + (int)(seed % (WORKERS_MOST - 1)), seed);
    program p;
    begin(&p, &net);
    for (int i = 0; i < 8; i++) run_step(&p);
    value root = sum_up(&p);
    tr_tensor *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
    for (int round = 0; round < 2; round++) { /* the second adds to the first */
        assert_int_equal(tr__dist_begin(p.contexts[0], &root.there, &one, 1, smart, round == 0, 0), TR_OK);
        deliver_backward(&net, p.contexts[0], threads);
        tr_status status = tr__dist_await(p.contexts[0], 0);
        if (status != TR_OK) fail_msg("seed %d: %s", (int)seed, tr_error_message());
        assert_int_equal(tr_backward(root.twin, .retain_graph = round == 0), TR_OK);
        check_leaves(&p, seed);
    }
    end(&p);
    stop(&net);
}

static void random_programs_leave_the_gradients_of_one_process(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        run_program(seed, false, 1);
        run_program(seed, true, 1);
    }
}

static void messages_may_come_on_several_threads_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) run_program(seed, seed % 2, 3);
}

/* ---- What the two modes send ------------------------------------------------------------------------------------- */

static void smart_leaves_alone_what_the_root_does_not_use(void **state)
{
    (void)state;
    for (int smart = 0; smart < 2; smart++) {
        TR_SCOPE;
        network net;
        program p;
        int64_t number;
        start(&net, 3, 1);
        begin(&p, &net);
        tr_tensor *x = p.leaves[0][0];
        tr_tensor *used = travel(&p, 0, 1, false, x, &number), *unused = travel(&p, 0, 2, false, x, &number);
        tr__dist_was_answered(p.contexts[0], 0, 2);
        used = travel(&p, 1, 0, true, tr_mul(used, p.leaves[1][0]), &number);
        unused = travel(&p, 2, 0, true, tr_mul(unused, p.leaves[2][0]), &number);
        tr_tensor *root = tr_sum(used), *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
        assert_int_equal(tr__dist_begin(p.contexts[0], &root, &one, 1, smart, false, 0), TR_OK);
        deliver_backward(&net, p.contexts[0], 1);
        assert_int_equal(tr__dist_await(p.contexts[0], 0), TR_OK);
        /* There and back for each worker that takes part; marks go the same way. */
        assert_int_equal(net.sent[TR__DIST_GRADIENT], smart ? 2 : 4);
        assert_int_equal(net.sent[TR__DIST_MARK], smart ? 2 : 0);
        assert_int_equal(net.sent[TR__DIST_START], 0);
        assert_non_null(tr_dist_grad(p.contexts[1], p.leaves[1][0]));
        assert_null(tr_dist_grad(p.contexts[2], p.leaves[2][0]));
        end(&p);
        stop(&net);
    }
}

static tr_status note_sent(tr_tensor *t, tr_tensor *grad, void *user)
{
    (void)t, (void)grad;
    const network *net = ((void **)user)[0];
    *(int64_t *)((void **)user)[1] = net->sent[TR__DIST_GRADIENT];
    return TR_OK;
}

/* A worker computes the gradient that others wait for before those that stay. */
static void a_gradient_that_leaves_goes_first(void **state)
{
    (void)state;
    TR_SCOPE;
    network net;
    program p;
    int64_t number, sent = -1;
    start(&net, 2, 1);
    begin(&p, &net);
    tr_tensor *matrix = p.leaves[1][MATRIX];
    assert_true(tr_grad_hook_add(matrix, note_sent, (void *[]){&net, &sent}) >= 0);
    tr_tensor *y = tr_matmul(travel(&p, 0, 1, false, p.leaves[0][0], &number), matrix);
    tr__dist_was_answered(p.contexts[0], 0, 1);
    tr_tensor *root = tr_sum(travel(&p, 1, 0, true, y, &number)), *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
    assert_int_equal(tr__dist_begin(p.contexts[0], &root, &one, 1, false, false, 0), TR_OK);
    deliver_backward(&net, p.contexts[0], 1);
    assert_int_equal(tr__dist_await(p.contexts[0], 0), TR_OK);
    assert_int_equal(sent, 2); /* there and back */
    end(&p);
    stop(&net);
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

/* A worker dies after some deliveries: the root must hear of it, or have its gradients; the others' parts end. */
static void a_worker_that_dies_ends_the_backward_everywhere(void **state)
{
    (void)state;
    int failures = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        TR_SCOPE;
        network net;
        start(&net, 4, seed);
        program p;
        begin(&p, &net);
        for (int i = 0; i < 8; i++) run_step(&p);
        tr_tensor *root = sum_up(&p).there, *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
        assert_int_equal(tr__dist_begin(p.contexts[0], &root, &one, 1, seed % 2, false, 0), TR_OK);
        packet *l;
        for (uint64_t steps = draw(&net, 12); steps > 0 && (l = take(&net)); steps--) {
            deliver(&net, l);
            net.busy--;
        }
        net.nodes[1 + draw(&net, 3)].dead = true;
        for (int i = 0; i < 4; i++)
            if (net.nodes[i].dead && p.contexts[i]) tr__dist_part_fail(p.contexts[i], TR_PEER, "it died");
        deliver_backward(&net, p.contexts[0], 1);
        tr_status status = tr__dist_await(p.contexts[0], 0);
        if (status != TR_OK && status != TR_PEER) fail_msg("seed %d: %s", (int)seed, tr_error_message());
        if (status == TR_PEER) assert_non_null(strstr(tr_error_message(), "it died"));
        failures += status == TR_PEER;
        deliver_with(&net, 1);
        if (status != TR_OK) assert_int_not_equal(tr__dist_await(p.contexts[0], 0), TR_OK);
        deliver_with(&net, 1);
        tr__dist_context_release(p.contexts[0]);
        deliver_with(&net, 1);
        for (int i = 0; i < 4; i++) tr_release(p.contexts[i]);
        stop(&net);
    }
    assert_true(failures > 50);
}

/* The message that ends a context may overtake the one that aborts its backward; and what it ended may be heard of from others. */
static void a_context_that_ends_tells_why_its_backward_failed(void **state)
{
    (void)state;
    int failures = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        TR_SCOPE;
        network net;
        start(&net, 3, seed);
        program p;
        begin(&p, &net);
        int64_t number;
        tr_tensor *there = travel(&p, 0, 1, false, p.leaves[0][0], &number);
        tr_tensor *further = travel(&p, 1, 2, false, tr_mul(there, p.leaves[1][0]), &number);
        tr_tensor *back = travel(&p, 1, 0, true, travel(&p, 2, 1, true, tr_mul(further, p.leaves[2][0]), &number), &number);
        tr_tensor *root = tr_sum(back), *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
        assert_int_equal(tr__dist_begin(p.contexts[0], &root, &one, 1, seed % 2, false, 0), TR_OK);
        for (uint64_t steps = draw(&net, 4); steps > 0; steps--) {
            deliver(&net, take(&net));
            net.busy--;
        }
        assert_int_equal(tr__dist_await(p.contexts[0], 0), TR_TIMEOUT);
        tr__dist_context_release(p.contexts[0]);
        deliver_with(&net, 1);
        for (int i = 0; i < 3; i++) {
            tr__dist_part *part = tr__part_of(p.contexts[i]);
            if (part && part->error) {
                if (part->error->status != TR_TIMEOUT && !strstr(part->error->message, "is over on worker"))
                    fail_msg("seed %d, worker %d: %s", (int)seed, i, part->error->message);
                failures += i > 0 && part->error->status == TR_TIMEOUT;
            }
            tr__dist_part_unref(part);
            tr_release(p.contexts[i]);
        }
        stop(&net);
    }
    assert_true(failures > 50);
}

static void refuses_what_cannot_be(void **state)
{
    (void)state;
    TR_SCOPE;
    network net;
    start(&net, 2, 1);
    program p;
    begin(&p, &net);
    int64_t number;
    tr_tensor *y = travel(&p, 0, 1, false, p.leaves[0][0], &number);
    /* the local engine does not leave the worker */
    tr_tensor *saves = tr_mul(y, y), *local = tr_sum(saves);
    for (int i = 0; i < 2; i++) { /* and a refusal leaves the graph whole */
        assert_int_equal(tr_backward(local), TR_STATE);
        assert_non_null(strstr(tr_error_message(), "goes on at worker 0"));
    }
    /* a tensor of another context */
    program q;
    begin(&q, &net);
    tr_tensor *back = travel(&p, 1, 0, true, y, &number);
    tr_tensor *root = tr_sum(back), *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
    assert_int_equal(tr__dist_begin(q.contexts[0], &root, &one, 1, false, false, 0), TR_OK);
    assert_int_equal(tr__dist_await(q.contexts[0], 0), TR_STATE);
    assert_non_null(strstr(tr_error_message(), "another context"));
    deliver_with(&net, 1);
    /* twice without retain_graph: the graph behind the tensor is used up */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tr__dist_begin(p.contexts[0], &root, &one, 1, true, false, 0), TR_OK);
        deliver_backward(&net, p.contexts[0], 1);
        assert_int_equal(tr__dist_await(p.contexts[0], 0), i ? TR_STATE : TR_OK);
        deliver_with(&net, 1);
    }
    assert_non_null(strstr(tr_error_message(), "retain_graph"));
    /* one that cannot end says what it waits for */
    tr_tensor *again = tr_sum(travel(&p, 1, 0, true, y, &number));
    assert_int_equal(tr__dist_begin(p.contexts[0], &again, &one, 1, true, false, 0), TR_OK);
    assert_int_equal(tr__dist_begin(p.contexts[0], &again, &one, 1, true, false, 0), TR_STATE);
    assert_int_equal(tr__dist_await(p.contexts[0], 0), TR_TIMEOUT);
    end(&q);
    end(&p);
    stop(&net);
}

/* ---- A deadline that passes while the engine is freed ------------------------------------------------------------------ */

/* Worker 0's port, where worker 1 answers late; and what its engine holds, which goes when the root has given up. */
static void *late_token;
static atomic_bool engine_goes, root_gave_up;

static void send_to_late(void *user, int to, const tr__dist_message *m, void *token)
{
    (void)user, (void)to;
    if (m->kind == TR__DIST_START) late_token = token;
    else if (token) tr__dist_answered(token, TR_OK, "");
    if (m->kind == TR__DIST_ABORT) atomic_store(&root_gave_up, true);
}

static void nobody_asks(void *user, void *call, tr_status status, const char *text)
{
    (void)user, (void)call, (void)status, (void)text;
}

static void go_when_root_sleeps(void *held)
{
    (void)held;
    atomic_store(&engine_goes, true);
    while (!atomic_load(&root_gave_up)) usleep(1000);
    usleep(50000); /* it goes to sleep */
}

static tr_status ends_as_it_was(void *user, tr_status status)
{
    (void)user;
    return status;
}

static void is_not_cancelled(void *user, const tr__backward *backward, tr_status status)
{
    (void)user, (void)backward, (void)status;
}

static void *answer_late(void *token)
{
    tr__dist_answered(token, TR_OK, "");
    return NULL;
}

static void a_root_that_gives_up_while_the_engine_goes_is_woken(void **state)
{
    (void)state;
    static const tr__type type = {"late", sizeof(tr__object), go_when_root_sleeps};
    TR_SCOPE;
    tr__dist dist;
    tr__dist_init(&dist, &(tr__dist_port){NULL, 0, 2, send_to_late, nobody_asks});
    tr_dist_context *c = tr__dist_context_new(&dist);
    tr_tensor *x = leaf(1, false), *y = tr_mul(x, x), *z = tr_sum(y), *one = tr_ones(TR_SCALAR, .dtype = TR_F64);
    int64_t sent, first = 0;
    assert_int_equal(tr__dist_sends(c, 1, false, &y, 1, &sent), TR_OK);
    assert_int_equal(tr__dist_begin(c, &z, &one, 1, false, false, 0), TR_OK);
    void *held = tr__object_new_kept(&type);
    tr__backward_callback callback = {.finish = ends_as_it_was, .cancel = is_not_cancelled, .held = held};
    assert_int_equal(tr__backward_on_end(c->part->engine, callback), TR_OK);
    tr_release(held);
    tr__dist_message none = {.kind = TR__DIST_GRADIENT, .context = c->id, .pass = 1, .numbers = &first, .n_numbers = 1};
    tr__dist_handle(&dist, 1, &none, NULL);

    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_late, late_token), 0);
    while (!atomic_load(&engine_goes)) usleep(1000);
    alarm(60); /* without it a wake-up that is missed would be no failure, but a test that hangs */
    assert_int_equal(tr__dist_await(c, 1), TR_TIMEOUT);
    alarm(0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    tr__dist_context_release(c);
    tr_release(c);
    tr__dist_end(&dist);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_leave_the_gradients_of_one_process),
        cmocka_unit_test(messages_may_come_on_several_threads_at_once),
        cmocka_unit_test(smart_leaves_alone_what_the_root_does_not_use),
        cmocka_unit_test(a_gradient_that_leaves_goes_first),
        cmocka_unit_test(a_worker_that_dies_ends_the_backward_everywhere),
        cmocka_unit_test(a_context_that_ends_tells_why_its_backward_failed),
        cmocka_unit_test(refuses_what_cannot_be),
        cmocka_unit_test(a_root_that_gives_up_while_the_engine_goes_is_woken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
