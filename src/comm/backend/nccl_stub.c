/* What stands here when NCCL's or CUDA's headers were missing at configure time. */
#include "comm/backend/nccl.h"

#include "base/object.h"

static tr_status join(const tr__member *member, void **state)
{
    (void)member;
    (void)state;
    return tr__fail(TR_UNSUPPORTED, "nccl: this library was built without it; build it where the CUDA toolkit and "
                                    "nccl.h are, or " TR__NCCL_INSTEAD);
}

const tr__backend tr__nccl_backend = {.name = "nccl", .join = join};
