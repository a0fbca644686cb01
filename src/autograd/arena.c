#include "autograd/arena.h"

#include "tensor/list.h"

#include <stdlib.h>

static void destroy(void *self)
{
    tr__arena *arena = self;
    tr__unref(arena->parameters);
    tr__unref(arena->gradients);
    free(arena->slots);
}

static const tr__type arena_type = {"arena", sizeof(tr__arena), destroy};

static bool fits(const tr_tensor *leaf, const tr_tensor *like)
{
    return !leaf->leaf->arena && leaf->dtype == like->dtype && tr_device_equal(tr__device_of(leaf), tr__device_of(like));
}

static tr_status check_leaves(const tr_tensor_list *leaves)
{
    for (int i = 0; i < leaves->count; i++) {
        tr_tensor *t = leaves->entries[i].tensor;
        if (tr__is_parameter(t)) continue;
        return tr__fail(TR_STATE, "parameter \"%s\" is no leaf that requires a gradient", leaves->entries[i].name);
    }
    return TR_OK;
}

/* Makes t read and write `flat` at offset; the caller has copied its values there. */
static void move_to(tr_tensor *t, const tr_tensor *flat, int64_t offset)
{
    tr__storage *old = t->storage;
    t->storage = tr__storage_ref(flat->storage);
    t->offset = flat->offset + offset;
    tr__row_major(t->shape, t->stride);
    tr__storage_unref(old);
}

static tr_tensor *part(const tr_tensor *flat, const tr__arena_slot *slot, tr_shape shape)
{
    return tr__tensor_view(flat, shape, NULL, flat->offset + slot->offset);
}

/* Copies a leaf's value into its slot. */
static tr_status fill_slot(const tr__arena *arena, const tr__arena_slot *slot)
{
    TR_SCOPE;
    return tr_copy_into(part(arena->parameters, slot, slot->leaf->shape), slot->leaf);
}

/* Gives a leaf the slot's place for its gradient, with the gradient that it has. */
static tr_status give_place(const tr__arena *arena, const tr__arena_slot *slot)
{
    TR_SCOPE;
    tr__leaf *leaf = slot->leaf->leaf;
    tr_tensor *place = part(arena->gradients, slot, slot->leaf->shape);
    TR__TRY(tr_status_of(place));
    if (leaf->has_grad) TR__TRY(tr_copy_into(place, leaf->grad));
    if (leaf->grad) move_to(leaf->grad, arena->gradients, slot->offset);
    else leaf->grad = tr_keep(place);
    return TR_OK;
}

static tr_status enter(tr__arena *arena, tr__arena_slot *slot)
{
    tr_tensor *t = slot->leaf;
    tr__leaf *leaf = t->leaf;
    unsigned version = tr__version(t);
    TR__TRY(give_place(arena, slot));
    move_to(t, arena->parameters, slot->offset);
    tr__version_set(t, version); /* to move is not to write: what is to be computed again may need it as it is */
    leaf->arena = tr__ref(arena);
    leaf->arena_place = &slot->leaf;
    return TR_OK;
}

/* Room for all slots. Each has its own version: a write to some leaves the others unchanged. */
static tr_tensor *flat(const tr__arena *arena, const tr_tensor *like, bool shared)
{
    tr_tensor *whole = tr_empty(TR_SHAPE(arena->count), .dtype = like->dtype, .device = tr__device_of(like), .shared = shared);
    if (tr__bad(whole)) return whole;
    size_t *begins = calloc((size_t)arena->n_slots, sizeof *begins);
    if (!begins) return tr__tensor_fail(TR_NO_MEMORY, "out of memory");
    for (int i = 0; i < arena->n_slots; i++) begins[i] = (size_t)arena->slots[i].offset * tr_dtype_size(like->dtype);
    tr_status status = tr__storage_divide(whole->storage, begins, arena->n_slots);
    free(begins);
    return status == TR_OK ? whole : tr__tensor_failed();
}

/* The gaps are all that has to be zeroed: slots are written before they are read. */
static tr_status zero_gaps(const tr__arena *arena, const tr_tensor *whole)
{
    TR_SCOPE;
    for (int i = 0; i < arena->n_slots; i++) {
        int64_t end = arena->slots[i].offset + arena->slots[i].count;
        int64_t next = i + 1 < arena->n_slots ? arena->slots[i + 1].offset : arena->count;
        if (end < next) TR__TRY(tr_fill(tr_slice((tr_tensor *)whole, 0, end, next), 0));
    }
    return TR_OK;
}

static tr_status make_gradients(tr__arena *arena)
{
    TR_SCOPE;
    tr_tensor *gradients = flat(arena, arena->parameters, arena->shared);
    TR__TRY(tr_status_of(gradients));
    TR__TRY(zero_gaps(arena, gradients));
    arena->gradients = tr_keep(gradients);
    return TR_OK;
}

/* Gives a leaf that has left its place again. */
static tr_status come_back(tr_tensor *leaf)
{
    tr__arena *arena = leaf->leaf->arena;
    if (!arena->gradients) TR__TRY(make_gradients(arena));
    return give_place(arena, tr__arena_slot_of(leaf));
}

/* One arena of all the leaves from first on that are like it. */
static tr_status build_one(const tr_tensor_list *leaves, int first)
{
    TR_SCOPE;
    const tr_tensor *like = leaves->entries[first].tensor;
    tr__arena *arena = tr__object_new(&arena_type);
    TR__TRY(tr_status_of(arena));
    arena->slots = calloc((size_t)(leaves->count - first), sizeof *arena->slots);
    if (!arena->slots) return tr__fail(TR_NO_MEMORY, "out of memory");
    for (int i = first; i < leaves->count; i++) {
        tr_tensor *t = leaves->entries[i].tensor;
        if (!fits(t, like)) continue;
        arena->slots[arena->n_slots++] = (tr__arena_slot){t, arena->count, tr__numel(t->shape)};
        arena->count += (tr__numel(t->shape) + TR__ARENA_ALIGN - 1) / TR__ARENA_ALIGN * TR__ARENA_ALIGN;
    }
    arena->parameters = tr_keep(flat(arena, like, false));
    TR__TRY(tr_status_of(arena->parameters));
    arena->parameters->storage->of_leaves = true;
    TR__TRY(zero_gaps(arena, arena->parameters));
    TR__TRY(make_gradients(arena));
    for (int i = 0; i < arena->n_slots; i++) TR__TRY(fill_slot(arena, &arena->slots[i]));
    for (int i = 0; i < arena->n_slots; i++) TR__TRY(enter(arena, &arena->slots[i]));
    /* What the leaves have left is as large as the arena, and in pieces that nothing else may ever ask for. */
    return tr_device_trim(tr__device_of(arena->parameters));
}

tr_status tr__arena_build(const tr_tensor_list *leaves)
{
    TR__TRY(tr_status_of(leaves));
    TR__TRY(check_leaves(leaves));
    TR_NO_GRAD;
    for (int i = 0; i < leaves->count; i++) {
        tr_tensor *leaf = leaves->entries[i].tensor;
        if (!leaf->leaf->arena) TR__TRY(build_one(leaves, i));
        else if (!tr__arena_has_place(leaf)) TR__TRY(come_back(leaf));
    }
    return TR_OK;
}

bool tr__arena_has_place(const tr_tensor *t)
{
    const tr__leaf *leaf = t->leaf;
    const tr_tensor *gradients = leaf->arena ? leaf->arena->gradients : NULL;
    return gradients && leaf->grad && leaf->grad->storage == gradients->storage;
}

void tr__arena_leave(tr_tensor *t)
{
    if (!tr__arena_has_place(t)) return;
    tr__arena *arena = t->leaf->arena;
    tr__unref(t->leaf->grad);
    t->leaf->grad = NULL;
    for (int i = 0; i < arena->n_slots; i++)
        if (arena->slots[i].leaf && tr__arena_has_place(arena->slots[i].leaf)) return;
    tr__unref(arena->gradients);
    arena->gradients = NULL;
}

tr_status tr__arena_share(tr__arena *arena)
{
    arena->shared = tr__device_of(arena->parameters).kind == TR_CPU;
    if (!arena->shared || arena->gradients->storage->kind == TR__SHARED) return TR_OK;
    TR_SCOPE;
    TR_NO_GRAD;
    tr_tensor *shared = flat(arena, arena->parameters, true); /* zero, as all fresh shared memory */
    TR__TRY(tr_status_of(shared));
    for (int i = 0; i < arena->n_slots; i++) {
        const tr__arena_slot *slot = &arena->slots[i];
        if (!slot->leaf || !tr__arena_has_place(slot->leaf)) continue;
        tr_tensor *grad = slot->leaf->leaf->grad;
        if (slot->leaf->leaf->has_grad) TR__TRY(tr_copy_into(part(shared, slot, grad->shape), grad));
    }
    for (int i = 0; i < arena->n_slots; i++)
        if (arena->slots[i].leaf && tr__arena_has_place(arena->slots[i].leaf))
            move_to(arena->slots[i].leaf->leaf->grad, shared, arena->slots[i].offset);
    move_to(arena->gradients, shared, 0);
    return TR_OK;
}

const tr__arena_slot *tr__arena_slot_of(const tr_tensor *leaf)
{
    if (!leaf->leaf || !leaf->leaf->arena) return NULL;
    /* arena_place is the first field of the slot */
    return (const tr__arena_slot *)(const void *)leaf->leaf->arena_place;
}

tr_status tr__arena_zero_missing(const tr_tensor *t)
{
    tr__leaf *leaf = t->leaf;
    TR__TRY(tr__grad_touch((tr_tensor *)t, true));
    if (leaf->has_grad) return TR_OK;
    TR__TRY(tr_fill(leaf->grad, 0.0));
    leaf->has_grad = true;
    return TR_OK;
}
