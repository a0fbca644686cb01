#include "comm/group/environment.h"

#include "base/launcher.h"
#include "base/object.h"
#include "comm/backend/mpi.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* A variable that must be there because another one is. */
static tr_status need_variable(const char *name, const char *because, const char **text)
{
    *text = getenv(name);
    if (*text && **text) return TR_OK;
    return tr__fail(TR_INVALID, "%s is set, but %s is not; start the program with a launcher, or set RANK, WORLD_SIZE, "
                                "MASTER_ADDR and MASTER_PORT", because, name);
}

static tr_status read_ranks(const tr__launcher *l, tr__place *p)
{
    const char *rank, *world, *text;
    TR__TRY(need_variable(l->world_size, l->rank, &world));
    TR__TRY(need_variable(l->rank, l->world_size, &rank));
    TR__TRY(tr__environment_number(l->world_size, world, 1, TR__RANKS_MAX, &p->world_size));
    TR__TRY(tr__environment_number(l->rank, rank, 0, p->world_size - 1, &p->rank));
    int local_world = p->world_size;
    text = l->local_world_size ? getenv(l->local_world_size) : NULL;
    if (text) TR__TRY(tr__environment_number(l->local_world_size, text, 1, p->world_size, &local_world));
    text = getenv(l->local_rank);
    if (text) TR__TRY(tr__environment_number(l->local_rank, text, 0, local_world - 1, &p->local_rank));
    return TR_OK;
}

/* A variable's number; least where there is none. */
static int number_or_least(const char *name, int least)
{
    const char *text = name ? getenv(name) : NULL;
    char *end = NULL;
    long number = text ? strtol(text, &end, 10) : 0;
    return number > least && number <= TR__RANKS_MAX && !*end ? (int)number : least;
}

bool tr_launched(int *rank, int *world_size, int *local_world_size)
{
    const tr__launcher *l = tr__launcher_here();
    if (rank) *rank = number_or_least(l ? l->rank : NULL, 0);
    if (world_size) *world_size = number_or_least(l ? l->world_size : NULL, 1);
    if (local_world_size) *local_world_size = number_or_least(l ? l->local_world_size : NULL, 1);
    return l != NULL;
}

/* ---- Slurm's meeting place --------------------------------------------------------------------------------------- */

/* "node[03-07,9].x,other" to "node03.x" */
static void first_host(const char *list, char *host, size_t size)
{
    size_t used = 0;
    bool inside = false, skip = false;
    for (; *list && (inside || *list != ',') && used + 1 < size; list++) {
        if (*list == '[') {
            inside = true;
        } else if (*list == ']') {
            inside = skip = false;
        } else {
            skip = skip || (inside && !isdigit((unsigned char)*list));
            if (!skip) host[used++] = *list;
        }
    }
    host[used] = 0;
}

/* All of a step's ranks find the same address and port by themselves: the first host, where rank 0 is, and a number made
 * of the job's and the step's, below those that the kernel gives out. */
static void slurm_meeting(tr__place *p)
{
    const char *nodes = getenv("SLURM_STEP_NUM_NODES"), *list = getenv("SLURM_STEP_NODELIST");
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    bool one_host = !list || (nodes && strcmp(nodes, "1") == 0);
    if (one_host)
        strcpy(p->host, "127.0.0.1");
    else
        first_host(list, p->host, sizeof p->host);
    unsigned long number = (job ? strtoul(job, NULL, 10) * 97 : 0) + (step ? strtoul(step, NULL, 10) : 0);
    p->port = (int)(20000 + number % 10000);
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* because: what says that there are several ranks. */
static tr_status read_meeting(const tr__launcher *l, const char *because, tr__place *p)
{
    const char *text;
    const char *hosted = getenv("TRIREME_STORE");
    p->serve = !(l == &tr__torchrun && hosted && strcmp(hosted, "1") == 0);
    text = getenv("TORCHELASTIC_RESTART_COUNT");
    if (text && !p->serve) TR__TRY(tr__environment_number("TORCHELASTIC_RESTART_COUNT", text, 0, INT_MAX, &p->restarts));
    if (l == &tr__slurm) slurm_meeting(p);
    if (!p->port || getenv("MASTER_PORT")) {
        TR__TRY(need_variable("MASTER_PORT", because, &text));
        TR__TRY(tr__environment_number("MASTER_PORT", text, 1, TR__PORT_MAX, &p->port));
    }
    if (!p->host[0] || getenv("MASTER_ADDR")) {
        TR__TRY(need_variable("MASTER_ADDR", because, &text));
        if (strlen(text) >= sizeof p->host) return tr__fail(TR_INVALID, "MASTER_ADDR=%.40s… is too long", text);
        strcpy(p->host, text);
    }
    return TR_OK;
}

static bool mpi_launched(const tr__launcher *l)
{
    return l && l != &tr__torchrun && tr__mpi_launched();
}

tr_status tr__environment_place(bool by_mpi, int timeout_ms, tr__place *p)
{
    const tr__launcher *l = tr__launcher_here();
    if (by_mpi || mpi_launched(l)) return tr__mpi_place(timeout_ms, p);
    if (!l) return TR_OK;
    tr_status status = read_ranks(l, p);
    if (status == TR_OK && p->world_size > 1) status = read_meeting(l, l->world_size, p);
    if (status == TR_OK || l == &tr__torchrun) return status;
    return tr__fail_context(status, "%s started this process, but this library has %s", l->name, tr__mpi_name());
}

tr_status tr__environment_meeting(bool by_mpi, int timeout_ms, tr__place *p)
{
    const tr__launcher *l = tr__launcher_here();
    if (by_mpi || mpi_launched(l)) {
        int rank = p->rank, world = p->world_size;
        TR__TRY(tr__mpi_place(timeout_ms, p));
        if (world == p->world_size && (rank == 0 || rank == p->rank)) return TR_OK;
        return tr__fail(TR_INVALID, "tr_join: a .rank of %d and a .world_size of %d were given, but MPI says rank %d of %d: leave them out",
            rank, world, p->rank, p->world_size);
    }
    if (!l) l = &tr__torchrun;
    const char *rank = getenv(l->rank), *local = getenv(l->local_rank);
    if (rank && p->rank == 0) TR__TRY(tr__environment_number(l->rank, rank, 0, p->world_size - 1, &p->rank));
    if (local) TR__TRY(tr__environment_number(l->local_rank, local, 0, p->world_size - 1, &p->local_rank));
    return p->world_size > 1 ? read_meeting(l, ".world_size", p) : TR_OK;
}
