#include "rpc_workers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t twice(int64_t x)
{
    return 2 * x;
}
TR_RPC(twice, I64, RETURNS(I64));

static int64_t doze(int64_t ms)
{
    usleep((unsigned)(1000 * ms));
    return ms;
}
TR_RPC(doze, I64, RETURNS(I64));

static int64_t length(const char *text)
{
    return (int64_t)strlen(text);
}
TR_RPC(length, STRING, RETURNS(I64));

tr_rpc *start_worker(const rank *r)
{
    tr_rpc *rpc = tr_rpc_start(r->group, .timeout_ms = JOIN_MS);
    const tr_rpc_function *const all[] = {&twice_rpc, &doze_rpc, &length_rpc};
    for (size_t i = 0; i < sizeof all / sizeof *all && tr_status_of(rpc) == TR_OK; i++) (void)!tr_rpc_register(rpc, all[i]);
    return rpc;
}

tr_status call_worker(tr_rpc *rpc, int to)
{
    tr_future *f = tr_rpc_sync(rpc, tr_rpc_name(rpc, to), "twice", 21);
    TRY(tr_future_wait(f));
    return tr_future_i64(f) == 42 ? TR_OK : tr_fail(TR_INTERNAL, "twice 21 is %lld", (long long)tr_future_i64(f));
}

tr_status says(const char *words)
{
    return strstr(tr_error_message(), words) ? TR_OK : tr_fail(TR_INTERNAL, "'%s' says nothing of '%s'", tr_error_message(), words);
}

char *text_of(size_t bytes)
{
    char *text = malloc(bytes + 1);
    if (!text) return NULL;
    memset(text, 'a', bytes);
    text[bytes] = 0;
    return text;
}
