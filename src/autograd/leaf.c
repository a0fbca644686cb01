/* What users see of leaves: gradients and hooks; and grad mode. */
#include "autograd/arena.h"
#include "autograd/engine.h"
#include "ops/node.h"

#include <stdlib.h>

tr_tensor *tr_grad(const tr_tensor *leaf)
{
    if (!leaf || tr__bad(leaf) || !leaf->leaf) return NULL;
    if (leaf->leaf->has_grad) return leaf->leaf->grad;
    if (!leaf->leaf->consumer) return NULL;
    return tr__tensor_fail(TR_STATE, "grad: an optimizer steps parameter %s in backward, which uses its gradient up; a gradient "
        "hook sees it", TR__TEXT(leaf->shape));
}

void tr_clear_grad(tr_tensor *t)
{
    tr__leaf *leaf = t && !tr__bad(t) ? t->leaf : NULL;
    if (!leaf) return;
    (void)!tr__grad_touch(t, false); /* without memory the next touch fails */
    leaf->has_grad = false;
    if (tr__arena_has_place(t)) return; /* it stays; the next backward overwrites it */
    tr__unref(leaf->grad);
    leaf->grad = NULL;
}

tr_status tr__gradients_stay(const char *what, const tr_tensor_list *leaves, const char *why)
{
    TR__TRY(tr_status_of(leaves));
    for (int i = 0; i < tr_list_count(leaves); i++) {
        const tr__leaf *leaf = tr_list_at(leaves, i)->leaf;
        if (leaf && leaf->consumer)
            return tr__fail(TR_UNSUPPORTED, "%s: an optimizer steps \"%s\" in backward (tr_step_in_backward()): %s", what,
                tr_list_name(leaves, i), why);
    }
    return TR_OK;
}

bool tr_set_grad(bool on)
{
    return tr__grad_mode_set(on);
}

bool tr_grad_enabled(void)
{
    return tr__grad_mode();
}

/* ---- Hooks: a distributed backward calls them on a thread of its own, while the program may add and remove some ----------- */

/* Ends hooks that have been removed, unless backwards are going through them: then the last of these does. Under the lock. */
static void end_removed(tr__leaf *leaf)
{
    if (leaf->walks > 0) return;
    tr__hook *first = leaf->hooks;
    for (tr__hook **place = &first; *place;) {
        tr__hook *hook = *place;
        if (!hook->removed) {
            place = &hook->next;
            continue;
        }
        *place = hook->next;
        free(hook);
    }
    leaf->hooks = first;
}

tr__hook *tr__hooks_next(tr__leaf *leaf, const tr__hook *before)
{
    if (!leaf->hooks) return NULL;
    pthread_mutex_lock(&leaf->hooks_lock);
    tr__hook *hook = before ? before->next : leaf->hooks;
    while (hook && hook->removed) hook = hook->next;
    leaf->walks += (hook && !before) - (before && !hook);
    end_removed(leaf);
    pthread_mutex_unlock(&leaf->hooks_lock);
    return hook;
}

void tr__hooks_leave(tr__leaf *leaf)
{
    pthread_mutex_lock(&leaf->hooks_lock);
    leaf->walks--;
    end_removed(leaf);
    pthread_mutex_unlock(&leaf->hooks_lock);
}

static int add_hook(tr_tensor *t, tr__hook made)
{
    tr__hook *hook = t && !tr__bad(t) && tr__is_parameter(t) ? calloc(1, sizeof *hook) : NULL;
    if (!hook) {
        tr__fail(TR_INVALID, "grad_hook_add: not a leaf that requires a gradient, or no memory");
        return -1;
    }
    tr__leaf *leaf = t->leaf;
    pthread_mutex_lock(&leaf->hooks_lock);
    int number = leaf->next_hook++;
    *hook = made;
    hook->number = number;
    tr__hook *last = leaf->hooks;
    while (last && last->next) last = last->next;
    if (last) last->next = hook;
    else leaf->hooks = hook;
    pthread_mutex_unlock(&leaf->hooks_lock);
    return number;
}

int tr__leaf_hook_add(tr_tensor *leaf, tr__leaf_hook hook, void *user)
{
    return add_hook(leaf, (tr__hook){.function = hook, .user = user});
}

int tr_grad_hook_add(tr_tensor *leaf, tr_grad_hook hook, void *user)
{
    if (hook) return add_hook(leaf, (tr__hook){.plain = hook, .user = user});
    tr__fail(TR_INVALID, "grad_hook_add: the hook is NULL");
    return -1;
}

void tr_grad_hook_remove(tr_tensor *t, int number)
{
    if (!t || tr__bad(t) || !t->leaf) return;
    pthread_mutex_lock(&t->leaf->hooks_lock);
    for (tr__hook *hook = t->leaf->hooks; hook; hook = hook->next) hook->removed |= hook->number == number;
    end_removed(t->leaf);
    pthread_mutex_unlock(&t->leaf->hooks_lock);
}

tr_tensor *tr_detach(tr_tensor *t)
{
    if (!t) return tr__tensor_fail(TR_INVALID, "detach: it takes a tensor, not NULL");
    return tr__bad(t) ? t : tr__tensor_view(t, t->shape, t->stride, t->offset);
}
