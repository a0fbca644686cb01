/*
 * Runs blocks. A fiber takes thread after thread of a block; one that has to wait keeps the fiber's stack, and another
 * fiber takes the next. So a kernel without barriers runs as a plain loop on one stack, and one with barriers takes a
 * fiber for each thread.
 */
#include "cuda_emulator.h"
#include "engine.h"
#include "fiber.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <signal.h>
#include <stdarg.h>
#include <string>
#include <thread>
#include <ucontext.h>
#include <vector>

namespace tr_emulator {

__thread place here = {{0, 0, 0}, {0, 0, 0}, dim3(1), dim3(1)};

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

static std::atomic<uint64_t> seed{1};

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void set_seed(uint64_t value) { seed = value * 0x9e3779b97f4a7c15u; }
uint64_t random() { return mix(seed.fetch_add(0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u); }

/* ---- A block ----------------------------------------------------------------------------------------------------- */

struct async_copy {
    void *to;
    const void *from;
    bool valid;
    int group;
};

struct thread_state {
    fiber *on;             /* its stack, from its first step to its end */
    const char *waits_in;  /* the operation that it is in, NULL while it can go on */
    site at;
    combine how;           /* its barrier, and what it brings there */
    int value;
    warp_function *compute; /* or its warp operation */
    unsigned mask;
    void *slot;
    std::vector<async_copy> copies;
    int group;             /* of copies that is open */
};

/* A bit for each lane. */
struct warp_state {
    unsigned exist, ready, at_barrier, in_operation, ended;
};

struct grid_meeting;

struct block_run {
    const kernel_launch &launch;
    grid_meeting *meeting; /* of the blocks of a cooperative launch, else NULL */
    uint64_t state;        /* of this block's random numbers */
    unsigned count;        /* threads */
    std::vector<thread_state> threads;
    std::vector<warp_state> warps;
    std::vector<unsigned> order;   /* of the warps */
    unsigned turn = 0;             /* in that order */
    unsigned rotation = 0;         /* which lane is the first */
    int running = -1;              /* the thread that runs; -1: none */
    int next = -1;                 /* the one that a fiber found to be next and cannot run itself */
    fiber own;                     /* the stack of the host's thread */
    int combined = 0;              /* what the last barrier made of the values */
    void *shared = nullptr;
    char error[1024] = "";

    block_run(const kernel_launch &l, grid_meeting *m, uint64_t s);
    ~block_run() { free(shared); }
    bool run(uint3 block);
    int pick();
    bool release();
    void wait(const char *in, site at);
    void finish_operation(warp_state &w, unsigned first, unsigned lane);
    void thread_ended(int t);
    uint64_t draw() { return mix(state += 0x9e3779b97f4a7c15u); }
    void complain(const char *format, ...) __attribute__((format(printf, 2, 3)));
    const char *who(char (&text)[300], int t) const;
    const char *tell(char (&text)[300], int t) const;
    uint3 index(int t) const
    {
        const unsigned i = static_cast<unsigned>(t), row = i / launch.block.x;
        return {i % launch.block.x, row % launch.block.y, row / launch.block.y};
    }
};

static __thread block_run *current;

bool in_kernel() { return current && current->running >= 0; }

/* The stacks of a thread of the host that no fiber has at the moment. */
struct stack_pool {
    std::vector<fiber *> free, all;
    ~stack_pool() { for (fiber *f : all) { fiber_free(f); delete f; } }
};
static thread_local stack_pool pool;

static fiber *take_stack()
{
    if (pool.free.empty()) {
        fiber *f = new fiber;
        if (!fiber_make(f)) {
            delete f;
            return nullptr;
        }
        pool.all.push_back(f);
        pool.free.push_back(f);
    }
    fiber *f = pool.free.back();
    pool.free.pop_back();
    return f;
}

block_run::block_run(const kernel_launch &l, grid_meeting *m, uint64_t s)
    : launch(l), meeting(m), state(s), count(l.block.x * l.block.y * l.block.z), threads(count),
      warps((count + 31) / 32),
      order(warps.size())
{
    std::iota(order.begin(), order.end(), 0u);
    fiber_of_thread(&own);
    if (launch.shared && posix_memalign(&shared, 128, launch.shared)) shared = nullptr;
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* The first complaint counts; it begins with the kernel and the block. */
void block_run::complain(const char *format, ...)
{
    if (*error) return;
    va_list more;
    va_start(more, format);
    int n = snprintf(error, sizeof error, "kernel %s, block (%u,%u,%u): ", launch.kernel, here.block.x, here.block.y,
        here.block.z);
    vsnprintf(error + n, sizeof error - static_cast<size_t>(n), format, more);
    va_end(more);
}

const char *block_run::who(char (&text)[300], int t) const
{
    const uint3 i = index(t);
    snprintf(text, sizeof text, "thread (%u,%u,%u)", i.x, i.y, i.z);
    return text;
}

const char *block_run::tell(char (&text)[300], int t) const
{
    const thread_state &s = threads[static_cast<size_t>(t)];
    const size_t n = strlen(strcat(const_cast<char *>(who(text, t)), " ")), left = sizeof text - n;
    char *rest = text + n;
    if (warps[static_cast<size_t>(t / 32)].ended >> (t % 32) & 1) snprintf(rest, left, "has ended");
    else if (!s.waits_in) snprintf(rest, left, "can go on");
    else if (s.compute)
        snprintf(rest, left, "waits in %s, mask 0x%08x, at %s:%d", s.waits_in, s.mask, s.at.file, s.at.line);
    else snprintf(rest, left, "waits in %s at %s:%d", s.waits_in, s.at.file, s.at.line);
    return text;
}

/* Leaves the running thread for good: the block is given up. */
[[noreturn]] static void leave()
{
    fiber *on = current->threads[static_cast<size_t>(current->running)].on;
    fiber_switch(on, &current->own);
    abort(); /* nothing resumes it */
}

void trap(const char *what, site at)
{
    char text[300];
    current->complain("%s at %s:%d by %s", what, at.file, at.line, current->who(text, current->running));
    leave();
}

/* ---- Memory faults ----------------------------------------------------------------------------------------------- */

static struct sigaction before[2];
static const int faults[2] = {SIGSEGV, SIGBUS};

/* What the handler below goes on with, on the stack of the fiber that failed. */
[[noreturn]] static void land() { leave(); }

static void on_fault(int number, siginfo_t *info, void *context)
{
    if (!in_kernel()) {
        describe_host_fault(info->si_addr);
        for (int i = 0; i < 2; i++)
            if (faults[i] == number) sigaction(number, &before[i], nullptr);
        return; /* the instruction fails again, and what was there before us hears of it */
    }
    char text[300];
    const thread_state &t = current->threads[static_cast<size_t>(current->running)];
    const char *who = current->who(text, current->running);
    current->complain("%s accesses %p, %s, after %s:%d", who, info->si_addr, describe_address(info->si_addr),
        t.at.file ? t.at.file : "its first line", t.at.line);
    auto *machine = &static_cast<ucontext_t *>(context)->uc_mcontext;
    char *top = t.on->stack + t.on->bytes - 256;
#if defined(__x86_64__)
    machine->gregs[REG_RIP] = reinterpret_cast<greg_t>(&land);
    machine->gregs[REG_RSP] = reinterpret_cast<greg_t>(top) - 8; /* as after a call */
#else
    machine->pc = reinterpret_cast<uintptr_t>(&land);
    machine->sp = reinterpret_cast<uintptr_t>(top);
#endif
}

/* The handler needs a stack of its own, as a fiber's may be what overflowed. */
struct signal_stack {
    std::vector<char> memory;
    signal_stack()
    {
        stack_t old;
        if (sigaltstack(nullptr, &old) || !(old.ss_flags & SS_DISABLE)) return;
        memory.resize(64 << 10);
        stack_t s = {};
        s.ss_sp = memory.data();
        s.ss_size = memory.size();
        sigaltstack(&s, nullptr);
    }
    ~signal_stack()
    {
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        if (!memory.empty()) sigaltstack(&none, nullptr);
    }
};

/* Again and again: a test's framework may have put its own handlers in the place of ours. */
void watch_faults()
{
    static thread_local signal_stack stack;
    static std::mutex lock;
    std::lock_guard<std::mutex> held(lock);
    (void)stack;
    for (int i = 0; i < 2; i++) {
        struct sigaction action = {}, now;
        sigaction(faults[i], nullptr, &now);
        if (now.sa_sigaction == on_fault) continue;
        before[i] = now;
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(faults[i], &action, nullptr);
    }
}

/* ---- Which thread is next ---------------------------------------------------------------------------------------- */

/* A lane of the current warp as long as one can go on, then the next warp. -1: all have ended, or there is an error. */
int block_run::pick()
{
    for (;;) {
        for (; turn < order.size(); turn++) {
            warp_state &w = warps[order[turn]];
            if (!w.ready) continue;
            const unsigned r = rotation % 32;
            const unsigned rotated = r ? w.ready >> r | w.ready << (32 - r) : w.ready;
            const unsigned bit = rotation & 32 ? 31u - static_cast<unsigned>(__builtin_clz(rotated))
                                               : static_cast<unsigned>(__builtin_ctz(rotated));
            const unsigned lane = (bit + r) % 32;
            w.ready &= ~(1u << lane);
            return static_cast<int>(order[turn] * 32 + lane);
        }
        if (!release()) return -1;
    }
}

static void shuffle_order(block_run &b)
{
    for (size_t i = b.order.size(); i > 1; i--) std::swap(b.order[i - 1], b.order[b.draw() % i]);
    b.rotation = static_cast<unsigned>(b.draw() % 64);
    b.turn = 0;
}

static bool meet(block_run &b);

/* No thread can go on: all have ended, or all wait at one barrier, or the kernel is wrong. */
bool block_run::release()
{
    int at_barrier = -1, elsewhere = -1, in_operation = -1;
    unsigned ended = 0;
    for (unsigned i = 0; i < count; i++) {
        const unsigned bit = 1u << i % 32;
        const warp_state &w = warps[i / 32];
        if (w.ended & bit) ended++;
        if (w.in_operation & bit) in_operation = static_cast<int>(i);
        if (!(w.at_barrier & bit)) elsewhere = static_cast<int>(i);
        else if (at_barrier < 0) at_barrier = static_cast<int>(i);
        else if (threads[i].at.line != threads[static_cast<size_t>(at_barrier)].at.line ||
            threads[i].at.file != threads[static_cast<size_t>(at_barrier)].at.file) elsewhere = static_cast<int>(i);
    }
    if (ended == count) return false;
    char first[300], second[300];
    if (at_barrier >= 0 && elsewhere >= 0) {
        complain("divergent barrier: %s, but %s", tell(first, at_barrier), tell(second, elsewhere));
        return false;
    }
    if (in_operation >= 0) {
        const thread_state &t = threads[static_cast<size_t>(in_operation)];
        const warp_state &w = warps[static_cast<size_t>(in_operation / 32)];
        const unsigned missing = t.mask & ~w.ended & ~(1u << in_operation % 32);
        const int other = missing ? in_operation / 32 * 32 + __builtin_ctz(missing) : in_operation;
        complain("deadlock: %s for lanes that never come: %s", tell(first, in_operation), tell(second, other));
        return false;
    }
    combine how = threads[0].how;
    int number = 0;
    for (const thread_state &t : threads) number += t.value != 0;
    combined = how == combine::all ? number == static_cast<int>(count) : how == combine::any ? number > 0 : number;
    if (how == combine::grid && !meet(*this)) return false;
    for (warp_state &w : warps) {
        w.ready = w.exist;
        w.at_barrier = 0;
    }
    shuffle_order(*this);
    return true;
}

/* ---- Running threads --------------------------------------------------------------------------------------------- */

/* What a fiber does: thread after thread, until the next one has a stack of its own. */
static void run_threads()
{
    fiber_entered(&current->own);
    for (;;) {
        block_run &b = *current;
        fiber *mine = b.threads[static_cast<size_t>(b.running)].on;
        b.launch.body();
        b.thread_ended(b.running);
        b.next = b.pick();
        if (b.next >= 0 && !b.threads[static_cast<size_t>(b.next)].on) {
            b.threads[static_cast<size_t>(b.next)].on = mine;
            b.running = b.next;
            here.thread = b.index(b.running);
            continue;
        }
        pool.free.push_back(mine);
        fiber_switch(mine, &b.own);
    }
}

void block_run::thread_ended(int t)
{
    warp_state &w = warps[static_cast<size_t>(t / 32)];
    threads[static_cast<size_t>(t)].on = nullptr;
    w.ended |= 1u << t % 32;
    /* Those that waited for this lane alone wait no more. */
    for (unsigned lanes = w.in_operation; lanes; lanes &= lanes - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(lanes));
        if (w.in_operation >> lane & 1) finish_operation(w, static_cast<unsigned>(t / 32 * 32), lane);
    }
}

/* false: an error, which stands in `error`. */
bool block_run::run(uint3 block)
{
    here = {{0, 0, 0}, block, launch.block, launch.grid};
    for (size_t i = 0; i < warps.size(); i++) {
        const unsigned lanes = std::min(32u, count - static_cast<unsigned>(i) * 32);
        const unsigned exist = lanes == 32 ? ~0u : (1u << lanes) - 1;
        warps[i] = {exist, exist, 0, 0, 0};
    }
    for (thread_state &t : threads) {
        t.on = nullptr;
        t.waits_in = nullptr;
        t.at = {nullptr, 0};
        t.copies.clear();
        t.group = 0;
    }
    if (shared) memset(shared, 0xff, launch.shared);
    shuffle_order(*this);
    next = pick();
    while (next >= 0 && !*error) {
        thread_state &t = threads[static_cast<size_t>(next)];
        if (!t.on) {
            t.on = take_stack();
            if (!t.on) {
                complain("no memory for the stack of a thread");
                break;
            }
            fiber_start(t.on, run_threads);
        }
        running = next;
        here.thread = index(running);
        fiber_switch(&own, t.on);
        running = -1;
    }
    if (!*error) return true;
    for (thread_state &t : threads) { /* threads that are given up half-way */
        if (!t.on) continue;
        fiber_abandon(t.on);
        pool.free.push_back(t.on);
    }
    return false;
}

/* The running thread waits until something makes it ready. */
void block_run::wait(const char *in, site at)
{
    const int t = running;
    thread_state &s = threads[static_cast<size_t>(t)];
    s.waits_in = in;
    s.at = at;
    next = pick();
    if (next != t) fiber_switch(s.on, &own);
    here.thread = index(t);
    s.waits_in = nullptr;
}

int barrier(combine how, int value, site at)
{
    block_run &b = *current;
    thread_state &s = b.threads[static_cast<size_t>(b.running)];
    if (how == combine::grid && !b.meeting) trap("tr_grid_sync() in a launch that is not cooperative", at);
    s.how = how;
    s.value = value;
    s.compute = nullptr;
    b.warps[static_cast<size_t>(b.running / 32)].at_barrier |= 1u << b.running % 32;
    b.wait(how == combine::grid ? "tr_grid_sync()" : "__syncthreads()", at);
    return b.combined;
}

/* ---- Warp operations --------------------------------------------------------------------------------------------- */

void warp_operation(const char *name, warp_function *compute, unsigned mask, void *slot, site at)
{
    block_run &b = *current;
    const unsigned lane = static_cast<unsigned>(b.running) % 32, first = static_cast<unsigned>(b.running) - lane;
    warp_state &w = b.warps[first / 32];
    thread_state &s = b.threads[static_cast<size_t>(b.running)];
    s.waits_in = name;
    s.at = at;
    s.compute = compute;
    s.mask = mask;
    s.slot = slot;
    if (!(mask >> lane & 1)) {
        char text[300];
        b.complain("a lane outside its mask: %s", b.tell(text, b.running));
        leave();
    }
    w.in_operation |= 1u << lane;
    b.finish_operation(w, first, lane);
    if (*b.error) leave();
    if (w.ready >> lane & 1) { /* the last one goes on at once */
        w.ready &= ~(1u << lane);
        s.waits_in = nullptr;
        return;
    }
    b.wait(name, at);
}

/* If all lanes of this lane's mask have arrived, computes, and makes them ready. */
void block_run::finish_operation(warp_state &w, unsigned first, unsigned lane)
{
    const thread_state &mine = threads[first + lane];
    const unsigned lanes = mine.mask & w.exist & ~w.ended;
    void *slots[32] = {};
    if (lanes & ~w.in_operation) return;
    for (unsigned i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        const thread_state &other = threads[first + i];
        slots[i] = other.slot;
        if (other.compute == mine.compute && other.mask == mine.mask && other.at.line == mine.at.line &&
            other.at.file == mine.at.file) continue;
        if (!(other.mask >> lane & 1)) return; /* it does not wait for this lane, so it may come yet */
        char one[300], two[300];
        complain("lanes in different warp operations: %s, but %s", tell(one, static_cast<int>(first + lane)),
            tell(two, static_cast<int>(first + i)));
        return;
    }
    mine.compute(slots, lanes);
    w.in_operation &= ~lanes;
    w.ready |= lanes;
}

void load_matrices(unsigned *r, int count, bool transposed, const void *row, site at)
{
    struct part { unsigned *r; int count; bool transposed; const void *row; } mine = {r, count, transposed, row};
    if (reinterpret_cast<uintptr_t>(row) % 16) trap("ldmatrix from an address that is not a multiple of 16", at);
    warp_operation("ldmatrix", [](void *const slots[32], unsigned) {
        for (unsigned i = 0; i < 32; i++) {
            const auto *to = static_cast<const part *>(slots[i]);
            for (int m = 0; m < to->count; m++) {
                unsigned short pair[2];
                for (unsigned k = 0; k < 2; k++) {
                    const unsigned y = to->transposed ? i % 4 * 2 + k : i / 4,
                                   x = to->transposed ? i / 4 : i % 4 * 2 + k;
                    const void *from = static_cast<const part *>(slots[static_cast<unsigned>(m) * 8 + y])->row;
                    memcpy(&pair[k], static_cast<const char *>(from) + 2 * x, 2);
                }
                to->r[m] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
            }
        }
    }, ~0u, &mine, at);
}

/* ---- Shared memory ----------------------------------------------------------------------------------------------- */

void *dynamic_shared() { return current->shared; }

static void move(const async_copy &c)
{
    if (c.valid) memcpy(c.to, c.from, 16);
    else memset(c.to, 0, 16);
}

/* At once, or as late as the thread waits for it: as the seed decides. */
void copy_async(void *to, const void *from, bool valid)
{
    thread_state &t = current->threads[static_cast<size_t>(current->running)];
    const async_copy c = {to, from, valid, t.group};
    if (current->draw() & 1) move(c);
    else t.copies.push_back(c);
}

void copy_commit() { current->threads[static_cast<size_t>(current->running)].group++; }

void copy_wait(int left)
{
    thread_state &t = current->threads[static_cast<size_t>(current->running)];
    size_t done = 0;
    while (done < t.copies.size() && t.copies[done].group < t.group - left) move(t.copies[done++]);
    t.copies.erase(t.copies.begin(), t.copies.begin() + static_cast<ptrdiff_t>(done));
}

/* ---- Grids ------------------------------------------------------------------------------------------------------- */

/* Blocks of a cooperative launch, a thread of the host each; one of them runs at a time, and the seed says which is
 * next. */
struct grid_meeting {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<int> able, met; /* blocks that can go on; that are at tr_grid_sync() */
    int running = -1;
    size_t blocks = 0;
    uint64_t state = 0;
    std::string error;

    /* With the lock held: the running block stops, and another one goes on. */
    void pass()
    {
        if (met.size() == blocks) able.swap(met);
        if (able.empty() && !met.empty()) {
            if (error.empty()) error = "deadlock: some blocks wait in tr_grid_sync(), the others have ended";
            able.swap(met);
        }
        running = -1;
        if (!able.empty()) {
            const size_t i = mix(state += 0x9e3779b97f4a7c15u) % able.size();
            running = able[i];
            able.erase(able.begin() + static_cast<ptrdiff_t>(i));
        }
        changed.notify_all();
    }
};

/* All threads of this block are at tr_grid_sync(). */
static bool meet(block_run &b)
{
    grid_meeting &m = *b.meeting;
    std::unique_lock<std::mutex> held(m.lock);
    const int me = m.running;
    m.met.push_back(me);
    m.pass();
    m.changed.wait(held, [&] { return m.running == me; });
    if (!m.error.empty()) b.complain("%s", m.error.c_str());
    return m.error.empty();
}

static uint3 block_index(const dim3 &grid, unsigned long i)
{
    return {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
        static_cast<unsigned>(i / grid.x / grid.y)};
}

static void run_together(const kernel_launch &launch, size_t blocks, std::string &error)
{
    grid_meeting m;
    std::vector<std::thread> hosts;
    m.blocks = blocks;
    m.state = random();
    for (size_t i = 0; i < blocks; i++) m.able.push_back(static_cast<int>(i));
    for (size_t i = 0; i < blocks; i++)
        hosts.emplace_back([&m, &launch, i, state = random()] {
            watch_faults();
            block_run b(launch, &m, state);
            std::unique_lock<std::mutex> held(m.lock);
            m.changed.wait(held, [&] { return m.running == static_cast<int>(i); });
            held.unlock();
            current = &b;
            b.run(block_index(launch.grid, i));
            current = nullptr;
            held.lock();
            if (*b.error && m.error.empty()) m.error = b.error;
            m.pass();
        });
    {
        std::lock_guard<std::mutex> held(m.lock);
        m.pass();
    }
    for (std::thread &host : hosts) host.join();
    error = m.error;
}

static void run_in_turn(const kernel_launch &launch, size_t blocks, std::string &error)
{
    block_run b(launch, nullptr, random());
    size_t stride = b.draw() % blocks | 1, at = b.draw() % blocks; /* at += stride visits every block */
    while (std::gcd(stride, blocks) != 1) stride += 2;
    current = &b;
    for (size_t i = 0; i < blocks && b.run(block_index(launch.grid, at)); i++) at = (at + stride) % blocks;
    current = nullptr;
    error = b.error;
}

const char *run(const kernel_launch &launch)
{
    static thread_local std::string error;
    const size_t blocks = static_cast<size_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    watch_faults();
    if (launch.cooperative) run_together(launch, blocks, error);
    else run_in_turn(launch, blocks, error);
    return error.empty() ? nullptr : error.c_str();
}

} /* namespace tr_emulator */
