/* What other layers need of the engine beyond <trireme/autograd.h>. */
#ifndef TR_AUTOGRAD_ENGINE_H
#define TR_AUTOGRAD_ENGINE_H

#include <trireme/autograd.h>

/* A backward under way. */
typedef struct tr__backward tr__backward;

/* As tr_grad_hook, with the backward that it is called from. */
typedef tr_status (*tr__leaf_hook)(tr_tensor *leaf, tr_tensor *grad, void *user, tr__backward *backward);
int tr__leaf_hook_add(tr_tensor *leaf, tr__leaf_hook hook, void *user);

/* Has finish(user) called once at the end of this backward, also when it fails (status then says so); what it returns
 * becomes the backward's status when that was TR_OK. NULL memory is an error. */
tr_status tr__backward_at_end(tr__backward *backward, tr_status (*finish)(void *user, tr_status status), void *user);

#endif
