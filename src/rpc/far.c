#include "rpc/agent.h"
tr_status tr__far_open(tr_rpc *rpc, tr__rpc_link *link, int socket)
{
    (void)rpc; (void)socket;
    return tr__fail(TR_UNSUPPORTED, "rpc: worker %d is on another host", link->worker);
}
void tr__far_free(tr__rpc_link *link) { (void)link; }
tr_status tr__far_send(tr_rpc *rpc, tr__rpc_link *link, const tr__rpc_frame *frame, const tr__rpc_writer *w)
{ (void)rpc; (void)link; (void)frame; (void)w; return TR_UNSUPPORTED; }
void tr__far_ready(tr__rpc_link *link, uint32_t events) { (void)link; (void)events; }
bool tr__far_waiting(const tr__rpc_link *link) { (void)link; return false; }
void tr__far_read(tr_rpc *rpc, tr__rpc_link *link) { (void)rpc; (void)link; }
void tr__far_finish(tr_rpc *rpc, tr__rpc_link *link) { (void)rpc; (void)link; }
