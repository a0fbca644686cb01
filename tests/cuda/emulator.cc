/*
 * Runs blocks. A fiber takes thread after thread of a block; one that has to wait keeps the fiber's stack, and another
 * fiber takes the next. So a kernel without barriers runs as a plain loop on one stack, and one with barriers takes a
 * fiber for each thread.
 */
#include "cuda_emulator.h"
#include "cudart.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <signal.h>
#include <stdarg.h>
#include <thread>
#include <ucontext.h>
#include <vector>

namespace tr_emulator {

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

static std::atomic<uint64_t> seed{1};
static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void set_seed(uint64_t value) { seed = value * GOLDEN; }
uint64_t random() { return mix(seed.fetch_add(GOLDEN) + GOLDEN); }

/* ---- A block ----------------------------------------------------------------------------------------------------- */

struct async_copy {
    void *to;
    const void *from;
    bool valid;
    int group;
};

struct thread_state {
    unsigned number;
    uint3 index;            /* threadIdx */
    fiber *on;              /* its stack, from its first step to its end */
    const char *waits_in;   /* the operation that it is in, NULL while it can go on */
    site at;
    combine how;            /* its barrier, and what it brings there */
    int value;
    warp_function *compute; /* or its warp operation */
    unsigned mask;
    void *slot;
    std::vector<async_copy> copies;
    int group;              /* of copies that is open */
};

/* A bit for each lane. */
struct warp_state {
    unsigned exist, ready, at_barrier, in_operation, ended;
};

static uint3 index_in(const dim3 &size, size_t i)
{
    return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
        static_cast<unsigned>(i / size.x / size.y)};
}

static bool same_line(const site &a, const site &b) { return a.line == b.line && a.file == b.file; }

struct grid_meeting;

struct block_run : place { /* the owner of its fibers */
    const kernel_launch &launch;
    grid_meeting *meeting; /* of the blocks of a cooperative launch, else NULL */
    uint64_t state;        /* of this block's random numbers */
    std::vector<thread_state> threads;
    std::vector<warp_state> warps;
    std::vector<unsigned> order;      /* of the warps */
    unsigned turn = 0;                /* in that order */
    unsigned rotation = 0;            /* which lane is the first */
    thread_state *running = nullptr;  /* the thread that runs; NULL: none */
    fiber own;                        /* the stack of the host's thread */
    int combined = 0;                 /* what the last barrier made of the values */
    std::unique_ptr<void, void (*)(void *)> shared{nullptr, free};
    char error[1024] = "";

    block_run(const kernel_launch &l, grid_meeting *m, uint64_t s)
        : place{{}, {}, l.block, l.grid}, launch(l), meeting(m), state(s),
          threads(l.block.x * l.block.y * l.block.z), warps((threads.size() + 31) / 32), order(warps.size())
    {
        std::iota(order.begin(), order.end(), 0u);
        for (unsigned i = 0; i < threads.size(); i++) {
            threads[i].number = i;
            threads[i].index = index_in(l.block, i);
        }
        fiber_of_thread(&own);
        void *dynamic; /* not a byte more, so that ASan sees an overrun */
        if (launch.shared && !posix_memalign(&dynamic, 128, launch.shared)) shared.reset(dynamic);
    }
    bool run(uint3 index);
    void go_on(thread_state &t);
    void switch_to(thread_state *next, fiber *from);
    thread_state *pick();
    bool release();
    void shuffle_order();
    void wait(const char *in, site at);
    void finish_operation(thread_state &mine);
    void thread_ended(thread_state &t);
    void complain(const char *format, ...) __attribute__((format(printf, 2, 3)));
    text who(const thread_state &t) const;
    text tell(const thread_state &t) const;
    warp_state &warp_of(const thread_state &t) { return warps[t.number / 32]; }
    uint64_t draw() { return mix(state += GOLDEN); }
};

static unsigned lane_of(const thread_state &t) { return t.number % 32; }
static __thread block_run *current; /* for who may be on no fiber; see fiber_owner() */
static block_run &mine() { return *static_cast<block_run *>(static_cast<place *>(fiber_owner())); }

/* The stacks of a thread of the host that no fiber has at the moment. */
struct stack_pool {
    std::vector<fiber *> free;
    ~stack_pool()
    {
        for (fiber *f : free) {
            fiber_free(f);
            delete f;
        }
    }
    fiber *take() /* NULL: no memory */
    {
        if (free.empty()) {
            auto made = std::make_unique<fiber>();
            return fiber_make(made.get()) ? made.release() : nullptr;
        }
        fiber *f = free.back();
        free.pop_back();
        return f;
    }
};
static thread_local stack_pool pool;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static text print_all(const char *format, va_list values)
{
    text made;
    vsnprintf(made.at, sizeof made.at, format, values);
    return made;
}

text print(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    const text made = print_all(format, values);
    va_end(values);
    return made;
}

/* The first complaint counts; it begins with the kernel and the block. */
void block_run::complain(const char *format, ...)
{
    if (*error) return;
    va_list values;
    va_start(values, format);
    const text more = print_all(format, values);
    va_end(values);
    snprintf(error, sizeof error, "kernel %s, block (%u,%u,%u): %s", launch.kernel, block.x, block.y, block.z, more.at);
}

text block_run::who(const thread_state &t) const
{
    return print("thread (%u,%u,%u)", t.index.x, t.index.y, t.index.z);
}

text block_run::tell(const thread_state &t) const
{
    const text mask = t.compute ? print(", mask 0x%08x,", t.mask) : text{};
    if (warps[t.number / 32].ended >> lane_of(t) & 1) return print("%s has ended", who(t).at);
    if (!t.waits_in) return print("%s can go on", who(t).at);
    return print("%s waits in %s%s at %s:%d", who(t).at, t.waits_in, mask.at, t.at.file, t.at.line);
}

/* Leaves the running thread for good: the block is given up. */
[[noreturn]] static void leave()
{
    fiber_switch(mine().running->on, &mine().own);
    abort(); /* nothing resumes it */
}

void trap(const char *what, site at)
{
    block_run &b = mine();
    b.complain("%s at %s:%d by %s", what, at.file, at.line, b.who(*b.running).at);
    leave();
}

/* ---- Memory faults ----------------------------------------------------------------------------------------------- */

static struct sigaction before[2];
static const int faults[2] = {SIGSEGV, SIGBUS};

/* A kernel's fault goes on in leave(), on the stack of the fiber that failed. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    if (!current || !current->running) {
        describe_host_fault(info->si_addr);
        for (int i = 0; i < 2; i++)
            if (faults[i] == number) sigaction(number, &before[i], nullptr);
        return; /* the instruction fails again, and what was there before us hears of it */
    }
    const thread_state &t = *current->running;
    current->complain("%s accesses %p, %s, after %s:%d", current->who(t).at, info->si_addr,
        describe_address(info->si_addr).at, t.at.file ? t.at.file : "its first line", t.at.line);
    auto *machine = &static_cast<ucontext_t *>(context)->uc_mcontext;
    char *top = t.on->stack + t.on->bytes - 256;
#if defined(__x86_64__)
    machine->gregs[REG_RIP] = reinterpret_cast<greg_t>(&leave);
    machine->gregs[REG_RSP] = reinterpret_cast<greg_t>(top) - 8; /* as after a call */
#else
    machine->pc = reinterpret_cast<uintptr_t>(&leave);
    machine->sp = reinterpret_cast<uintptr_t>(top);
#endif
}

/* Again and again: a test's framework may have put its own handlers in the place of ours. */
void watch_faults()
{
    /* The handler needs a stack of its own, as a fiber's may be what overflowed. */
    static thread_local struct handler_stack {
        std::vector<char> memory;
        ~handler_stack()
        {
            const stack_t none = {nullptr, SS_DISABLE, 0};
            if (!memory.empty()) sigaltstack(&none, nullptr);
        }
    } stack;
    static std::mutex lock;
    std::lock_guard<std::mutex> held(lock);
    stack_t now_on;
    if (sigaltstack(nullptr, &now_on) == 0 && now_on.ss_flags & SS_DISABLE) {
        stack.memory.resize(64 << 10);
        const stack_t own = {stack.memory.data(), 0, stack.memory.size()};
        sigaltstack(&own, nullptr);
    }
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

/* A lane of the current warp as long as one can go on, then the next warp. NULL: all have ended, or there is an
 * error. */
thread_state *block_run::pick()
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
            return &threads[order[turn] * 32 + lane];
        }
        if (!release()) return nullptr;
    }
}

void block_run::shuffle_order()
{
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[draw() % i]);
    rotation = static_cast<unsigned>(draw() % 64);
    turn = 0;
}

static bool meet(block_run &b);

/* No thread can go on: all have ended, or all wait at one barrier, or the kernel is wrong. */
bool block_run::release()
{
    const thread_state *at_barrier = nullptr, *elsewhere = nullptr, *in_operation = nullptr;
    if (std::all_of(warps.begin(), warps.end(), [](const warp_state &w) { return w.ended == w.exist; })) return false;
    for (const thread_state &t : threads) {
        const unsigned bit = 1u << lane_of(t);
        const warp_state &w = warp_of(t);
        if (w.in_operation & bit) in_operation = &t;
        if (!(w.at_barrier & bit)) elsewhere = &t;
        else if (!at_barrier) at_barrier = &t;
        else if (!same_line(t.at, at_barrier->at)) elsewhere = &t;
    }
    if (at_barrier && elsewhere) {
        complain("divergent barrier: %s, but %s", tell(*at_barrier).at, tell(*elsewhere).at);
        return false;
    }
    if (in_operation) {
        const unsigned missing = in_operation->mask & ~warp_of(*in_operation).ended & ~(1u << lane_of(*in_operation));
        const thread_state &other = missing
            ? threads[in_operation->number / 32 * 32 + static_cast<unsigned>(__builtin_ctz(missing))] : *in_operation;
        complain("deadlock: %s for lanes that never come: %s", tell(*in_operation).at, tell(other).at);
        return false;
    }
    const combine how = threads[0].how;
    const auto number = std::count_if(threads.begin(), threads.end(), [](const thread_state &t) { return t.value; });
    combined = how == combine::all   ? number == static_cast<long>(threads.size())
               : how == combine::any ? number > 0
                                     : static_cast<int>(number);
    if (how == combine::grid && !meet(*this)) return false;
    for (warp_state &w : warps) {
        w.ready = w.exist;
        w.at_barrier = 0;
    }
    shuffle_order();
    return true;
}

/* ---- Running threads --------------------------------------------------------------------------------------------- */

void block_run::go_on(thread_state &t)
{
    running = &t;
    thread = t.index;
}

static void run_threads();

/* Goes from one stack to that of the next thread, or to the host's when there is none or an error. */
void block_run::switch_to(thread_state *next, fiber *from)
{
    fiber *to = &own;
    if (next && !*error && !next->on) {
        next->on = pool.take();
        if (next->on) fiber_start(next->on, run_threads, static_cast<place *>(this));
        else complain("no memory for the stack of a thread");
    }
    if (next && !*error) {
        to = next->on;
        go_on(*next);
    }
    if (from != to) fiber_switch(from, to);
}

/* What a fiber does: thread after thread, until the next one has a stack of its own. */
static void run_threads()
{
    fiber_entered(&mine().own);
    for (;;) {
        block_run &b = mine();
        fiber *mine = b.running->on;
        b.launch.body();
        b.thread_ended(*b.running);
        thread_state *next = b.pick();
        if (next && !next->on && !*b.error) {
            next->on = mine;
            b.go_on(*next);
            continue;
        }
        pool.free.push_back(mine);
        b.switch_to(next, mine);
    }
}

void block_run::thread_ended(thread_state &t)
{
    warp_state &w = warp_of(t);
    t.on = nullptr;
    w.ended |= 1u << lane_of(t);
    /* Those that waited for this lane alone wait no more. */
    for (unsigned lane = 0; lane < 32 && w.in_operation >> lane; lane++)
        if (w.in_operation >> lane & 1) finish_operation(threads[t.number / 32 * 32 + lane]);
}

/* false: an error, which stands in `error`. */
bool block_run::run(uint3 index)
{
    block = index;
    for (size_t i = 0; i < warps.size(); i++) {
        const size_t lanes = std::min<size_t>(32, threads.size() - i * 32);
        const unsigned exist = ~0u >> (32 - lanes);
        warps[i] = {exist, exist, 0, 0, 0};
    }
    for (thread_state &t : threads) {
        t.on = nullptr;
        t.waits_in = nullptr;
        t.at = {nullptr, 0};
        t.copies.clear();
        t.group = 0;
    }
    if (shared) memset(shared.get(), 0xff, launch.shared);
    shuffle_order();
    switch_to(pick(), &own); /* comes back when all have ended, or there is an error */
    running = nullptr;
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
    thread_state &s = *running;
    s.waits_in = in;
    s.at = at;
    switch_to(pick(), s.on);
    s.waits_in = nullptr;
}

int barrier(combine how, int value, site at)
{
    block_run &b = mine();
    thread_state &s = *b.running;
    if (how == combine::grid && !b.meeting) trap("tr_grid_sync() in a launch that is not cooperative", at);
    s.how = how;
    s.value = value;
    s.compute = nullptr;
    b.warp_of(s).at_barrier |= 1u << lane_of(s);
    b.wait(how == combine::grid ? "tr_grid_sync()" : "__syncthreads()", at);
    return b.combined;
}

/* ---- Warp operations --------------------------------------------------------------------------------------------- */

void warp_operation(const char *name, warp_function *compute, unsigned mask, void *slot, site at)
{
    block_run &b = mine();
    thread_state &s = *b.running;
    warp_state &w = b.warp_of(s);
    const unsigned bit = 1u << lane_of(s);
    s.waits_in = name;
    s.at = at;
    s.compute = compute;
    s.mask = mask;
    s.slot = slot;
    if (!(mask & bit)) b.complain("a lane outside its mask: %s", b.tell(s).at);
    else {
        w.in_operation |= bit;
        b.finish_operation(s);
    }
    if (*b.error) leave();
    if (!(w.ready & bit)) return b.wait(name, at);
    w.ready &= ~bit; /* the last one goes on at once */
    s.waits_in = nullptr;
}

/* If all lanes of this lane's mask have arrived, computes, and makes them ready. */
void block_run::finish_operation(thread_state &mine)
{
    warp_state &w = warp_of(mine);
    const unsigned lanes = mine.mask & w.exist & ~w.ended;
    void *slots[32] = {};
    if (lanes & ~w.in_operation) return;
    for (unsigned i = 0; i < 32; i++) {
        if (!(lanes >> i & 1)) continue;
        const thread_state &other = threads[mine.number / 32 * 32 + i];
        slots[i] = other.slot;
        if (other.compute == mine.compute && other.mask == mine.mask && same_line(other.at, mine.at)) continue;
        if (!(other.mask >> lane_of(mine) & 1)) return; /* it does not wait for this lane, so it may come yet */
        complain("lanes in different warp operations: %s, but %s", tell(mine).at, tell(other).at);
        return;
    }
    mine.compute(slots);
    w.in_operation &= ~lanes;
    w.ready |= lanes;
}

void load_matrices(unsigned *r, int count, bool transposed, const void *row, site at)
{
    struct part { unsigned *r; int count; bool transposed; const void *row; } mine = {r, count, transposed, row};
    if (reinterpret_cast<uintptr_t>(row) % 16) trap("ldmatrix from an address that is not a multiple of 16", at);
    warp_operation("ldmatrix", [](void *const slots[32]) {
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

void *dynamic_shared() { return mine().shared.get(); }

static void move(const async_copy &c)
{
    if (c.valid) memcpy(c.to, c.from, 16);
    else memset(c.to, 0, 16);
}

/* At once, or as late as the thread waits for it: as the seed decides. */
void copy_async(void *to, const void *from, bool valid)
{
    block_run &b = mine();
    thread_state &t = *b.running;
    const async_copy c = {to, from, valid, t.group};
    if (b.draw() & 1) move(c);
    else t.copies.push_back(c);
}

void copy_commit() { mine().running->group++; }

void copy_wait(int left)
{
    thread_state &t = *mine().running;
    auto first = t.copies.begin(), last = first;
    for (; last != t.copies.end() && last->group < t.group - left; ++last) move(*last);
    t.copies.erase(first, last);
}

/* ---- Grids ------------------------------------------------------------------------------------------------------- */

/* Blocks of a cooperative launch, a thread of the host each; one of them runs at a time, and the seed says which is
 * next. */
struct grid_meeting {
    std::mutex lock;
    std::condition_variable changed;
    std::vector<int> able, met; /* blocks that can go on; that are at tr_grid_sync() */
    int running = -1;
    size_t blocks;
    uint64_t state = random();
    std::string error;

    explicit grid_meeting(size_t n) : able(n), blocks(n) { std::iota(able.begin(), able.end(), 0); }

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
            const size_t i = mix(state += GOLDEN) % able.size();
            running = able[i];
            able.erase(able.begin() + static_cast<ptrdiff_t>(i));
        }
        changed.notify_all();
    }
    void wait_for_turn(std::unique_lock<std::mutex> &held, int block)
    {
        changed.wait(held, [&] { return running == block; });
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
    m.wait_for_turn(held, me);
    if (!m.error.empty()) b.complain("%s", m.error.c_str());
    return m.error.empty();
}

static std::string run_together(const kernel_launch &launch, size_t blocks)
{
    grid_meeting m(blocks);
    std::vector<std::thread> hosts;
    for (size_t i = 0; i < blocks; i++)
        hosts.emplace_back([&m, &launch, i, state = random()] {
            watch_faults();
            block_run b(launch, &m, state);
            std::unique_lock<std::mutex> held(m.lock);
            m.wait_for_turn(held, static_cast<int>(i));
            held.unlock();
            current = &b;
            b.run(index_in(launch.grid, i));
            current = nullptr;
            held.lock();
            if (m.error.empty()) m.error = b.error;
            m.pass();
        });
    std::unique_lock<std::mutex> held(m.lock);
    m.pass();
    held.unlock();
    for (std::thread &host : hosts) host.join();
    return m.error;
}

static std::string run_in_turn(const kernel_launch &launch, size_t blocks)
{
    block_run b(launch, nullptr, random());
    size_t stride = b.draw() % blocks | 1, at = b.draw() % blocks; /* at += stride visits every block */
    while (std::gcd(stride, blocks) != 1) stride += 2;
    current = &b;
    for (size_t i = 0; i < blocks && b.run(index_in(launch.grid, at)); i++) at = (at + stride) % blocks;
    current = nullptr;
    return b.error;
}

std::string run(const kernel_launch &launch)
{
    const size_t blocks = static_cast<size_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
    watch_faults();
    return launch.cooperative ? run_together(launch, blocks) : run_in_turn(launch, blocks);
}

} /* namespace tr_emulator */
