/*
 * A double of NCCL for the double of CUDA's runtime. A collective is an operation of its stream: it runs when the
 * seed comes by, moves a part of its data each time it is looked at, and writes its result last; so what no event
 * orders reads what was there before. A communicator that does not block hands its calls to the stream only some
 * questions later, as the real one does from its own thread: an event that is recorded too early marks nothing.
 *
 * The ranks of a communicator, threads or processes, share a memfd, whose path is the unique id. In it, each ordered
 * pair has a ring of bytes, and every call is a list of sends and receives, after which each rank reduces for
 * itself, in the order of the ranks. CUDA_EMULATOR="fail=ncclAllReduce:2" lets the second call fail, as of any
 * function; of "ncclAsyncError" the n-th question finds that the communicator has failed.
 */
#include <atomic>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/backend/nccl_abi.h"
#include "cudart.h"

using namespace tr_emulator;

namespace {

enum { RANKS = 16, RING = 32 << 10 };

struct ring {
    std::atomic<uint64_t> written, taken;
    char bytes[RING];
};

/* What the ranks of a communicator say in a split, the generation of which each is at. */
struct division {
    std::atomic<int> said[RANKS], left[RANKS]; /* in which split it has said so, and has read all */
    int color[RANKS], key[RANKS];
    ncclUniqueId id[RANKS];                    /* that of the first of a color serves */
};

struct segment {
    std::atomic<int> arrived, gave_up;               /* gave_up: a rank has aborted */
    std::atomic<int> process[RANKS], device[RANKS];  /* the process is 0 once it has left */
    ring rings[RANKS][RANKS];                        /* from, to */
    division parts;
};

struct transfer {
    bool sends;
    int peer;
    char *at;
    size_t bytes;
};

/* A call on its way. */
struct action {
    std::vector<transfer> transfers;
    std::vector<std::vector<char>> inputs; /* of all ranks, where they are reduced */
    std::function<void()> end;             /* writes the result */
};

struct communicator {
    segment *shared;
    int rank, ranks, device;
    std::atomic<bool> aborted{false};
    std::atomic<int> under_way{0}; /* on a stream */
    ncclResult_t failure = ncclSuccess;
    std::string text;
    std::deque<std::pair<cudaStream_t, operation>> taken; /* not on their stream yet */
    uint64_t questions = 0;        /* until they are */
    bool met = false;
    int splits = 0;                /* so far */
    ncclComm_t *part = nullptr;    /* where the one under way puts its result */

    ~communicator() { munmap(shared, sizeof *shared); }
};
typedef std::shared_ptr<communicator> reference;

ncclResult_t fail(communicator &c, ncclResult_t result, const std::string &text)
{
    c.failure = result;
    c.text = text;
    return result;
}

/* ---- Moving bytes ------------------------------------------------------------------------------------------------ */

void move(const communicator &c, transfer &t)
{
    ring &r = t.sends ? c.shared->rings[c.rank][t.peer] : c.shared->rings[t.peer][c.rank];
    const uint64_t written = r.written, taken = r.taken;
    size_t left = std::min<size_t>(t.bytes, t.sends ? RING - (written - taken) : written - taken);
    t.bytes -= left;
    while (left) {
        const size_t at = (t.sends ? r.written : r.taken) % RING, n = std::min(left, RING - at); /* to its end */
        if (t.sends) memcpy(r.bytes + at, t.at, n);
        else memcpy(t.at, r.bytes + at, n);
        (t.sends ? r.written : r.taken) += n;
        t.at += n;
        left -= n;
    }
}

/* Moves what can move; of several between two ranks one after the other. true: all is there. */
bool advance(const communicator &c, action &a)
{
    std::set<std::pair<bool, int>> waits;
    for (transfer &t : a.transfers) {
        if (waits.count({t.sends, t.peer})) continue;
        move(c, t);
        if (t.bytes) waits.insert({t.sends, t.peer});
    }
    return waits.empty();
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Of this thread: a group of calls is open; what has been called in it. */
struct grouped_call {
    reference c;
    cudaStream_t stream;
    std::shared_ptr<action> what;
};
thread_local int depth;
thread_local std::vector<grouped_call> grouped;

void give(const grouped_call &call)
{
    call.c->under_way++;
    call.c->questions = tr_emulator::random() % 3;
    call.c->taken.push_back({call.stream, {"ncclKernel", [c = call.c, a = call.what] {
        if (!c->aborted && !advance(*c, *a)) return cudaErrorNotReady;
        if (!c->aborted && a->end) a->end();
        c->under_way--;
        return cudaSuccess;
    }}});
}

size_t size_of(ncclDataType_t type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

template <typename T>
void reduce_as(void *out, const std::vector<std::vector<char>> &inputs, size_t count, ncclRedOp_t op)
{
    typedef std::conditional_t<std::is_integral_v<T>, int64_t,
        std::conditional_t<std::is_same_v<T, double>, double, float>> wide;
    std::vector<wide> sums(count);
    for (size_t rank = 0; rank < inputs.size(); rank++) {
        const T *from = reinterpret_cast<const T *>(inputs[rank].data());
        for (wide &sum : sums) {
            const auto next = static_cast<wide>(*from++);
            sum = rank == 0       ? next
                  : op == ncclProd ? sum * next
                  : op == ncclMax  ? std::max(sum, next)
                  : op == ncclMin  ? std::min(sum, next)
                                   : sum + next;
        }
    }
    for (size_t i = 0; i < count; i++)
        static_cast<T *>(out)[i] = static_cast<T>(op == ncclAvg ? sums[i] / static_cast<wide>(inputs.size()) : sums[i]);
}

void reduce(void *out, const std::vector<std::vector<char>> &inputs, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    switch (type) {
    case ncclFloat32: return reduce_as<float>(out, inputs, count, op);
    case ncclFloat64: return reduce_as<double>(out, inputs, count, op);
    case ncclFloat16: return reduce_as<__half>(out, inputs, count, op);
    case ncclBfloat16: return reduce_as<__nv_bfloat16>(out, inputs, count, op);
    case ncclInt64: return reduce_as<int64_t>(out, inputs, count, op);
    case ncclInt32: return reduce_as<int32_t>(out, inputs, count, op);
    default: return reduce_as<uint8_t>(out, inputs, count, op);
    }
}

/* What every rank gives goes to those for whom it is, who reduce: `bytes` of it for each, at in + to * stride. */
void reduction(const communicator &c, action &a, const void *in, size_t stride, void *out, size_t count,
    ncclDataType_t type, ncclRedOp_t op, int root)
{
    const size_t bytes = count * size_of(type), ranks = static_cast<size_t>(c.ranks);
    auto *from = static_cast<char *>(const_cast<void *>(in));
    for (int rank = 0; rank < c.ranks; rank++)
        if (root < 0 || rank == root)
            a.transfers.push_back({true, rank, from + static_cast<size_t>(rank) * stride, bytes});
    if (root >= 0 && root != c.rank) return;
    a.inputs.assign(ranks, std::vector<char>(bytes));
    for (int rank = 0; rank < c.ranks; rank++)
        a.transfers.push_back({false, rank, a.inputs[static_cast<size_t>(rank)].data(), bytes});
    a.end = [=, &a] { reduce(out, a.inputs, count, type, op); }; /* a holds the function */
}

/* What the givers give goes to all, block by block. */
void distribution(const communicator &c, action &a, const void *in, void *out, size_t bytes, int root)
{
    auto *from = static_cast<char *>(const_cast<void *>(in)), *to = static_cast<char *>(out);
    for (int rank = 0; rank < c.ranks; rank++) {
        if (root < 0 || root == c.rank) a.transfers.push_back({true, rank, from, bytes});
        if (root < 0) a.transfers.push_back({false, rank, to + static_cast<size_t>(rank) * bytes, bytes});
        else if (rank == root) a.transfers.push_back({false, rank, to, bytes});
    }
}

/* May a call be made? The n-th of these may fail on request, and the communicator must be free. */
ncclResult_t check(communicator &c, const char *name)
{
    if (call_fails(name)) return fail(c, ncclSystemError, std::string(name) + " was to fail");
    if (c.failure != ncclSuccess) return c.failure;
    if (!c.met || !c.taken.empty() || c.part) return fail(c, ncclInvalidUsage, "a call is still under way");
    return ncclSuccess;
}

} /* namespace */

struct ncclComm {
    reference c;
};

/* Checks a call and its buffers, which must be the device's own, and enqueues what `make` makes of an empty action. */
struct buffer {
    const void *memory;
    size_t bytes;
};
template <typename F>
static ncclResult_t start(const char *name, ncclComm_t comm, tr__cuda_stream stream, buffer in, buffer out, F make)
{
    communicator &c = *comm->c;
    const ncclResult_t result = check(c, name);
    if (result != ncclSuccess) return result;
    held_lock held(state().lock);
    for (const auto &[memory, bytes] : {in, out}) {
        const location at = locate(memory, bytes);
        if (bytes && (at.kind != where::device || at.device != c.device))
            return fail(c, ncclInvalidArgument, std::string(name) + ": a buffer is not on the communicator's GPU");
    }
    held.unlock();
    const grouped_call call = {comm->c, reinterpret_cast<cudaStream_t>(stream), std::make_shared<action>()};
    make(c, *call.what);
    if (depth) grouped.push_back(call);
    else give(call);
    return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
    ncclComm_t comm, tr__cuda_stream stream)
{
    const size_t bytes = count * size_of(type);
    return start(__func__, comm, stream, {in, bytes}, {out, bytes},
        [&](communicator &c, action &a) { reduction(c, a, in, 0, out, count, type, op, -1); });
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
    ncclComm_t comm, tr__cuda_stream stream)
{
    const size_t bytes = count * size_of(type);
    return start(__func__, comm, stream, {in, bytes}, {out, comm->c->rank == root ? bytes : 0},
        [&](communicator &c, action &a) { reduction(c, a, in, 0, out, count, type, op, root); });
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
    ncclComm_t comm, tr__cuda_stream stream)
{
    const size_t bytes = count * size_of(type);
    return start(__func__, comm, stream, {in, bytes * static_cast<size_t>(comm->c->ranks)}, {out, bytes},
        [&](communicator &c, action &a) { reduction(c, a, in, bytes, out, count, type, op, -1); });
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
    tr__cuda_stream stream)
{
    const size_t bytes = count * size_of(type);
    return start(__func__, comm, stream, {in, comm->c->rank == root ? bytes : 0}, {out, bytes},
        [&](communicator &c, action &a) { distribution(c, a, in, out, bytes, root); });
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
    tr__cuda_stream stream)
{
    const size_t bytes = count * size_of(type);
    return start(__func__, comm, stream, {in, bytes}, {out, bytes * static_cast<size_t>(comm->c->ranks)},
        [&](communicator &c, action &a) { distribution(c, a, in, out, bytes, -1); });
}

static ncclResult_t transfer_of(const char *name, transfer t, ncclComm_t comm, tr__cuda_stream stream)
{
    if (t.peer < 0 || t.peer >= comm->c->ranks) return fail(*comm->c, ncclInvalidArgument, "there is no such rank");
    return start(name, comm, stream, {t.at, t.bytes}, {nullptr, 0},
        [&](communicator &, action &a) { a.transfers.push_back(t); });
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
    tr__cuda_stream stream)
{
    auto *from = static_cast<char *>(const_cast<void *>(in));
    return transfer_of(__func__, {true, peer, from, count * size_of(type)}, comm, stream);
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, tr__cuda_stream stream)
{
    return transfer_of(__func__, {false, peer, static_cast<char *>(out), count * size_of(type)}, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    if (call_fails("ncclGroupStart")) return ncclSystemError;
    depth++;
    return ncclSuccess;
}

/* The sends and receives on each communicator become one call, on the stream of the first. Only those between two ranks, in one
 * direction, keep their order. */
ncclResult_t ncclGroupEnd(void)
{
    if (--depth) return ncclSuccess;
    std::vector<grouped_call> whole;
    for (const grouped_call &call : std::exchange(grouped, {})) {
        const auto found = std::find_if(whole.begin(), whole.end(), [&](auto &w) { return w.c == call.c; });
        if (found == whole.end()) whole.push_back(call);
        else found->what->transfers.push_back(call.what->transfers.at(0));
    }
    if (call_fails("ncclGroupEnd")) return ncclSystemError;
    for (const grouped_call &call : whole) {
        auto &all = call.what->transfers;
        if (tr_emulator::random() % 2) std::stable_partition(all.begin(), all.end(), [](const transfer &t) { return !t.sends; });
        give(call);
    }
    return whole.empty() ? ncclSuccess : ncclInProgress;
}

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

/* The memfd stays open in the process that made it: a group more, or a split, costs it a descriptor. */
static ncclResult_t make_id(ncclUniqueId *id)
{
    const int file = memfd_create("nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(segment)) != 0) return ncclSystemError;
    *id = {};
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", getpid(), file);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return call_fails("ncclGetUniqueId") ? ncclSystemError : make_id(id);
}

static ncclResult_t join(ncclComm_t *comm, int ranks, const ncclUniqueId &id, int rank, int device)
{
    const int file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0) return ncclSystemError;
    void *shared = mmap(nullptr, sizeof(segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED) return ncclSystemError;
    auto c = std::make_shared<communicator>();
    c->shared = static_cast<segment *>(shared);
    c->rank = rank;
    c->ranks = ranks;
    c->device = device;
    c->shared->process[rank] = getpid();
    c->shared->device[rank] = c->device;
    c->shared->arrived++;
    *comm = new ncclComm{c};
    return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    if (call_fails("ncclCommInitRankConfig")) return ncclSystemError;
    if (config->magic != 0xcafebeef || config->blocking != 0 || ranks > RANKS) return ncclInvalidArgument;
    return join(comm, ranks, id, rank, current_device);
}

/* What this rank wants; the others are asked by ncclCommGetAsyncError(). */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *)
{
    communicator &c = *comm->c;
    const ncclResult_t result = check(c, "ncclCommSplit");
    if (result != ncclSuccess) return result;
    if (color < -1) return fail(c, ncclInvalidArgument, "a color is 0 or more, or NCCL_SPLIT_NOCOLOR");
    division &d = c.shared->parts;
    for (int rank = 0; rank < c.ranks; rank++)
        while (d.left[rank] < c.splits) sched_yield(); /* the one before */
    if (make_id(&d.id[c.rank]) != ncclSuccess) return fail(c, ncclSystemError, "no id for the part");
    d.color[c.rank] = color;
    d.key[c.rank] = key;
    d.said[c.rank] = ++c.splits;
    c.part = part;
    *part = nullptr;
    return ncclInProgress;
}

/* Goes on with a split, when all have said what they want. */
static ncclResult_t go_on_splitting(communicator &c)
{
    division &d = c.shared->parts;
    std::vector<std::pair<int, int>> members; /* by key and rank */
    for (int rank = 0; rank < c.ranks; rank++) {
        if (d.said[rank] < c.splits) return ncclInProgress;
        if (d.color[rank] == d.color[c.rank]) members.push_back({d.key[rank], rank});
    }
    std::sort(members.begin(), members.end());
    const auto own = std::find(members.begin(), members.end(), std::make_pair(d.key[c.rank], c.rank));
    ncclResult_t result = ncclInProgress;
    if (d.color[c.rank] >= 0)
        result = join(c.part, static_cast<int>(members.size()), d.id[members[0].second],
            static_cast<int>(own - members.begin()), c.device);
    d.left[c.rank] = c.splits;
    c.part = nullptr;
    return result == ncclInProgress ? ncclSuccess : fail(c, result, "joining the part failed");
}

/* All have come; then, are they on GPUs of their own? */
static void meet(communicator &c)
{
    if (c.met || c.shared->arrived < c.ranks) return;
    c.met = true;
    for (int rank = 0; rank < c.ranks; rank++)
        if (rank != c.rank && c.shared->device[rank] == c.device)
            fail(c, ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(c.rank) + " and rank " +
                std::to_string(rank) + " both on CUDA device " + std::to_string(c.device));
}

/* Has another rank died or given up? */
static void look_for_others(communicator &c)
{
    if (c.shared->gave_up) fail(c, ncclRemoteError, "another rank has aborted");
    for (int rank = 0; rank < c.ranks; rank++) {
        const int process = c.shared->process[rank];
        if (process && kill(process, 0) != 0 && errno == ESRCH)
            fail(c, ncclRemoteError, "rank " + std::to_string(rank) + " is gone");
    }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    communicator &c = *comm->c;
    if (call_fails("ncclCommGetAsyncError")) return ncclSystemError;
    if (call_fails("ncclAsyncError")) fail(c, ncclInternalError, "the network is down");
    if (c.failure == ncclSuccess) look_for_others(c);
    meet(c);
    *state = c.failure;
    if (c.failure != ncclSuccess) return ncclSuccess;
    *state = ncclInProgress;
    if (!c.met || (!c.taken.empty() && c.questions-- > 0)) return ncclSuccess;
    if (c.part) {
        *state = go_on_splitting(c);
        return ncclSuccess;
    }
    for (; !c.taken.empty(); c.taken.pop_front()) {
        const cudaError_t error =
            call_fails("ncclKernel") ? cudaErrorUnknown : enqueue(c.taken.front().first, c.taken.front().second);
        if (error != cudaSuccess) return *state = fail(c, ncclUnhandledCudaError, cudaGetErrorString(error));
    }
    *state = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    return call_fails("ncclCommFinalize") ? ncclSystemError : comm->c->failure;
}

static ncclResult_t end(ncclComm_t comm)
{
    comm->c->shared->process[comm->c->rank] = 0;
    comm->c->aborted = true;  /* what is still on a stream ends */
    comm->c->taken.clear();   /* which holds the communicator */
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->c->under_way) return fail(*comm->c, ncclInvalidUsage, "destroyed while a call is under way");
    return end(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->c->shared->gave_up = 1;
    return end(comm);
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error",
        "NCCL operation in progress"};
    return texts[result];
}

/* For tests, which find it in the library. */
extern "C" void tr_nccl_double_fail(const char *function, int nth);
void tr_nccl_double_fail(const char *function, int nth) { fail_call(function, nth); }

const char *ncclGetLastError(ncclComm_t comm) { return comm ? comm->c->text.c_str() : ""; }
