/* What stands here when the library is built without MPI. */
#include "base/object.h"
#include "comm/backend/mpi.h"

const char *tr__mpi_name(void)
{
    return "no MPI";
}

bool tr__mpi_launched(void)
{
    return false;
}

static tr_status absent(void)
{
    return tr__fail(TR_UNSUPPORTED, "tr_join: this library was built without MPI; install libopenmpi-dev or libmpich-dev "
                                    "and build it again, or leave out .backend = \"mpi\"");
}

tr_status tr__mpi_place(int timeout_ms, tr__place *place)
{
    (void)timeout_ms;
    (void)place;
    return absent();
}

static tr_status join(const tr__member *member, void **state)
{
    (void)member;
    (void)state;
    return absent();
}

const tr__backend tr__mpi_backend = {.name = "mpi", .join = join};
