/*
 * Starting and ending MPI, and how the ranks of an MPI job find a store. MPI exists once in a process, so what is here is
 * process-wide.
 */
#include "comm/backend/mpi_library.h"

#include "base/launcher.h"
#include "base/thread.h"
#include "comm/algo/reduce.h"
#include "comm/backend/mpi.h"
#include "comm/join/rendezvous.h"
#include "net/tls.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    tr__mpi_library library;
    bool started;        /* library is filled in */
    bool ours;           /* we called MPI_Init_thread, so we end it */
    long pid;            /* a forked child must not end its parent's MPI */
    int groups;          /* open */
    bool alone;          /* one of them has given up what MPI goes on with, or a rank that did not come */
    tr_store *store;     /* the job's */
    char host[256];      /* where it is served */
    tr__error *failure;  /* why there is none */
    bool met;            /* one of the two is set */
} mpi = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

tr_status tr__mpi_fail(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0, class = MPI_ERR_OTHER;
    MPI_Error_class(error, &class);
    MPI_Error_string(error, text, &length);
    tr_status status = class == MPI_ERR_TRUNCATE ? TR_MISMATCH : class == MPI_ERR_NO_MEM ? TR_NO_MEMORY : TR_IO;
    return tr__fail(status, "%s failed: %s", what, length ? text : "no reason given");
}

/* ---- Who started us ---------------------------------------------------------------------------------------------- */

const char *tr__mpi_name(void)
{
    static char name[MPI_MAX_LIBRARY_VERSION_STRING];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    TR__LOCKED(&lock);
    int length;
    if (!name[0] && MPI_Get_library_version(name, &length) == MPI_SUCCESS) {
        name[strcspn(name, ",\n")] = 0; /* "Open MPI v4.1.4, package: …"; "MPICH Version:\t4.0.2\n…" */
        char *tab = strchr(name, '\t');
        if (tab) *tab = ' ';
    }
    return name;
}

/* MPI_Init in a process that the library's own launcher or a process manager it knows did not start makes a world of one,
 * or aborts: so this is asked first. */
bool tr__mpi_launched(void)
{
    if (getenv("PMIX_RANK")) return true;
    if (strncmp(tr__mpi_name(), "Open MPI", 8) == 0) return getenv(tr__open_mpi.world_size);
    return getenv("PMI_RANK") || getenv("PMI_FD") || getenv("PMI_PORT");
}

/* What the launcher says must be what MPI sees: where MPI knows nothing of the launcher each process is a world of one to
 * it, and each would train by itself. */
static tr_status check_size(int size)
{
    const tr__launcher *l = tr__launcher_here();
    int started = 1;
    const char *text = l ? getenv(l->world_size) : NULL;
    if (!text || tr__environment_number(l->world_size, text, 1, TR__RANKS_MAX, &started) != TR_OK || started == size)
        return TR_OK;
    if (l == &tr__torchrun)
        return tr__fail(TR_STATE, "a launcher that is not MPI's started %d ranks (%s), and MPI sees %d: for the backend \"mpi\" "
            "start the program with mpirun, or leave that backend out", started, l->world_size, size);
    return tr__fail(TR_STATE, "%s started %d ranks (%s), but %s, which this library was built with, sees %d; start the "
        "program with that MPI's own mpirun or with srun --mpi=pmix, or build with -DTRIREME_MPI=openmpi or =mpich",
        l->name, started, l->world_size, tr__mpi_name(), size);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Ended in order when the program ends well, has left its groups (they hold the store), and is not alone. Otherwise the
 * others are not here to meet in MPI_Finalize: without it, mpirun sees a rank that failed, and ends the job. */
static void end(int exit_code, void *unused)
{
    (void)unused;
    if (mpi.pid != (long)getpid()) return;
    bool left = mpi.groups == 0 && (!mpi.store || tr__refs(mpi.store) == 1);
    int ended = 0;
    if (exit_code == 0 && mpi.ours && left && !mpi.alone && MPI_Finalized(&ended) == MPI_SUCCESS && !ended)
        MPI_Finalize();
    tr__unref(mpi.store);
    mpi.store = NULL;
    tr__error_unref(mpi.failure);
    mpi.failure = NULL;
}

void tr__mpi_count_groups(int more, bool alone)
{
    TR__LOCKED(&mpi.lock);
    mpi.groups += more;
    mpi.alone |= alone;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

#define OWN_OP(name, dtype, op)                                                                 \
    static void name(void *in, void *inout, int *count, MPI_Datatype *type)                     \
    {                                                                                           \
        (void)type;                                                                             \
        const void *const ranks[] = {in, inout};                                                \
        tr__reduce_find(dtype, op)(ranks, 2, &inout, 1, *count);                                \
    }
OWN_OP(min_f32, TR_F32, TR_MIN)
OWN_OP(max_f32, TR_F32, TR_MAX)
OWN_OP(min_f64, TR_F64, TR_MIN)
OWN_OP(max_f64, TR_F64, TR_MAX)

static tr_status make_ops(tr__mpi_library *l)
{
    static MPI_User_function *const functions[TR__MPI_OWN_OPS] = {
        [TR__MPI_MIN_F32] = min_f32,
        [TR__MPI_MAX_F32] = max_f32,
        [TR__MPI_MIN_F64] = min_f64,
        [TR__MPI_MAX_F64] = max_f64,
    };
    for (int i = 0; i < TR__MPI_OWN_OPS; i++) TR__MPI_TRY(MPI_Op_create, functions[i], 1, &l->own_ops[i]);
    return TR_OK;
}

static tr_status init(void)
{
    int started = 0, ended = 0, level = MPI_THREAD_SINGLE;
    TR__MPI_TRY(MPI_Finalized, &ended);
    if (ended) return tr__fail(TR_STATE, "MPI was ended in this process (MPI_Finalize), and cannot be started again");
    TR__MPI_TRY(MPI_Initialized, &started);
    if (!started) {
        TR__MPI_TRY(MPI_Init_thread, NULL, NULL, MPI_THREAD_MULTIPLE, &level);
        mpi.ours = true;
        /* Failures of requests of several communicators are these ones', and else would end the job. */
        TR__MPI_TRY(MPI_Comm_set_errhandler, MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        TR__MPI_TRY(MPI_Comm_set_errhandler, MPI_COMM_SELF, MPI_ERRORS_RETURN);
    } else {
        TR__MPI_TRY(MPI_Query_thread, &level);
    }
    if (level == MPI_THREAD_MULTIPLE) return TR_OK;
    return tr__fail(TR_UNSUPPORTED, "MPI runs in this process without MPI_THREAD_MULTIPLE, which groups need; leave "
        "starting it to tr_join(), or ask MPI_Init_thread() for it");
}

static tr_status look_around(tr__mpi_library *l)
{
    TR__MPI_TRY(MPI_Comm_dup, MPI_COMM_WORLD, &l->world);
    TR__MPI_TRY(MPI_Comm_set_errhandler, l->world, MPI_ERRORS_RETURN);
    TR__MPI_TRY(MPI_Comm_rank, l->world, &l->rank);
    TR__MPI_TRY(MPI_Comm_size, l->world, &l->size);
    MPI_Comm host;
    int local_size;
    TR__MPI_TRY(MPI_Comm_split_type, l->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    TR__MPI_TRY(MPI_Comm_rank, host, &l->local_rank);
    TR__MPI_TRY(MPI_Comm_size, host, &local_size);
    TR__MPI_TRY(MPI_Comm_free, &host);
    l->one_host = local_size == l->size;
    void *most = NULL;
    int there = 0;
    TR__MPI_TRY(MPI_Comm_get_attr, l->world, MPI_TAG_UB, (void *)&most, &there);
    l->tag_most = there ? *(int *)most : 32767;
    return make_ops(l);
}

static tr_status start(void)
{
    if (mpi.started) return TR_OK;
    TR__TRY(init());
    TR__TRY(look_around(&mpi.library));
    mpi.pid = (long)getpid();
    mpi.started = true;
    if (on_exit(end, NULL) != 0) return tr__fail(TR_NO_MEMORY, "no memory to end MPI with the process");
    return TR_OK;
}

tr_status tr__mpi_start(const tr__mpi_library **library)
{
    pthread_mutex_lock(&mpi.lock);
    tr_status status = start();
    pthread_mutex_unlock(&mpi.lock);
    if (status == TR_OK) status = check_size(mpi.library.size);
    *library = &mpi.library;
    return status;
}

/* ---- The job's store --------------------------------------------------------------------------------------------- */

enum { RANDOM_TOKEN = 65 }; /* with its end */

/* What rank 0 tells the others. */
typedef struct bootstrap {
    tr_status status;
    int port;
    char host[256];
    char token[TR__TOKEN_MAX + 1];
    char failure[400];
} bootstrap;

/* An address of this host that others can reach: the first one that is up and not loopback. */
static tr_status own_address(char *host, size_t bytes)
{
    struct ifaddrs *all, *a;
    if (getifaddrs(&all) != 0) return tr__fail(TR_IO, "cannot list this host's addresses");
    int error = EAI_NONAME;
    for (a = all; a && error; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || !(a->ifa_flags & IFF_UP) ||
            a->ifa_flags & IFF_LOOPBACK)
            continue;
        error = getnameinfo(a->ifa_addr, sizeof(struct sockaddr_in), host, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST);
    }
    freeifaddrs(all);
    if (!error) return TR_OK;
    return tr__fail(TR_IO, "this host has no IPv4 address that other hosts can reach; set MASTER_ADDR to one of its names");
}

static tr_status serve(const char *token, int timeout_ms, bootstrap *boot)
{
    const char *address = getenv("MASTER_ADDR");
    if (mpi.library.one_host)
        strcpy(boot->host, "127.0.0.1");
    else if (address && strlen(address) < sizeof boot->host)
        strcpy(boot->host, address);
    else
        TR__TRY(own_address(boot->host, sizeof boot->host));
    if (!token || !*token) TR__TRY(tr__random_text(boot->token, RANDOM_TOKEN));
    else snprintf(boot->token, sizeof boot->token, "%s", token);
    TR_SCOPE;
    tr_store *store = tr_store_tcp(boot->host, 0, .serve = true, .token = token && *token ? token : boot->token,
        .timeout_ms = timeout_ms);
    TR__TRY(tr_status_of(store));
    boot->port = tr_store_port(store);
    mpi.store = tr__ref(store);
    return TR_OK;
}

static tr_status connect_store(const bootstrap *boot, int timeout_ms)
{
    if (boot->status != TR_OK) return tr__fail(boot->status, "rank 0 serves no store: %s", boot->failure);
    TR_SCOPE;
    tr_store *store = tr_store_tcp(boot->host, boot->port, .token = boot->token, .timeout_ms = timeout_ms);
    TR__TRY(tr_status_of(store));
    mpi.store = tr__ref(store);
    return TR_OK;
}

static tr_status meet(const char *token, int timeout_ms)
{
    bootstrap boot = {0};
    tr_status status = TR_OK;
    if (mpi.library.rank == 0) {
        boot.status = status = serve(token, timeout_ms, &boot);
        if (status != TR_OK) snprintf(boot.failure, sizeof boot.failure, "%s", tr_error_message());
    }
    TR__MPI_TRY(MPI_Bcast, &boot, sizeof boot, MPI_BYTE, 0, mpi.library.world);
    if (mpi.library.rank != 0) status = connect_store(&boot, timeout_ms);
    boot.host[sizeof boot.host - 1] = 0;
    strcpy(mpi.host, boot.host);
    explicit_bzero(&boot, sizeof boot);
    return status;
}

/* Once in the life of the process: a second broadcast would not find its peers. */
static tr_status meet_once(const char *token, int timeout_ms)
{
    TR__LOCKED(&mpi.lock);
    if (!mpi.met && meet(token, timeout_ms) != TR_OK) mpi.failure = tr__error_take();
    mpi.met = true;
    return tr__fail_stored(mpi.failure);
}

tr_status tr__mpi_place(int timeout_ms, tr__place *p)
{
    const tr__mpi_library *l;
    TR__TRY(tr__mpi_start(&l));
    p->rank = l->rank;
    p->world_size = l->size;
    p->local_rank = l->local_rank;
    if (l->size == 1) return TR_OK;
    TR__TRY(meet_once(p->token, timeout_ms));
    p->store = mpi.store;
    strcpy(p->host, mpi.host);
    p->port = tr_store_port(mpi.store);
    return TR_OK;
}
