/* Meshes: the ranks of a world as a box whose edges are data, tensor and pipeline parallel. */
#include "base/given.h"
#include "comm/group/agree.h"
#include "comm/group/group.h"

#include <trireme/parallel.h>

struct tr_mesh {
    tr__object object;
    tr_group *groups[TR_MESH_AXES]; /* kept */
};

static void destroy(void *self)
{
    tr_mesh *mesh = self;
    for (int i = 0; i < TR_MESH_AXES; i++) tr_release(mesh->groups[i]);
}

static const tr__type mesh_type = {"mesh", sizeof(tr_mesh), destroy};

/* Fills in the edge that is left out, and checks that the box has as many places as the world has ranks. */
static tr_status measure(const tr_mesh_options *o, int world, int size[TR_MESH_AXES])
{
    size[TR_MESH_DP] = o->dp;
    size[TR_MESH_TP] = TR__OR(o, tp, 1);
    size[TR_MESH_PP] = TR__OR(o, pp, 1);
    if (o->dp < 0 || size[TR_MESH_TP] < 1 || size[TR_MESH_PP] < 1)
        return tr__fail(TR_INVALID, "mesh: dp %d, tp %d, pp %d: each is at least 1", o->dp, size[TR_MESH_TP], size[TR_MESH_PP]);
    /* Also so that the product of three fits into 64 bits. */
    static const char *const names[] = {[TR_MESH_DP] = "dp", [TR_MESH_TP] = "tp", [TR_MESH_PP] = "pp"};
    for (int i = 0; i < TR_MESH_AXES; i++)
        if (size[i] > world) return tr__fail(TR_INVALID, "mesh: %s %d: the world has %d ranks", names[i], size[i], world);
    int64_t others = (int64_t)size[TR_MESH_TP] * size[TR_MESH_PP];
    if (!o->dp && world % others)
        return tr__fail(TR_INVALID, "mesh: %d ranks do not divide by tp %d x pp %d = %lld: %lld ranks would",
            world, size[TR_MESH_TP], size[TR_MESH_PP], (long long)others, (long long)((world / others + 1) * others));
    if (!o->dp) size[TR_MESH_DP] = (int)(world / others);
    if (size[TR_MESH_DP] * others == world) return TR_OK;
    return tr__fail(TR_INVALID, "mesh: dp %d x tp %d x pp %d makes %lld ranks and the world has %d: the product must be %d",
        size[TR_MESH_DP], size[TR_MESH_TP], size[TR_MESH_PP], (long long)(size[TR_MESH_DP] * others), world, world);
}

/* Boxes of other edges would overlap: each rank would be in groups that others see otherwise. What is wrong on all ranks is found
 * after this, so that nobody waits here for one that has failed. */
static tr_status compare(const tr_mesh_options *o)
{
    tr__facts facts = {0};
    tr__facts_say(&facts, "dp", "%d", o->dp);
    tr__facts_say(&facts, "tp", "%d", TR__OR(o, tp, 1));
    tr__facts_say(&facts, "pp", "%d", TR__OR(o, pp, 1));
    return tr__agree_once(o->world, "mesh", TR_OK, &facts);
}

/* rank = (pp * DP + dp) * TP + tp. Ranks that differ in one place only are a group, in the order of that place. All ranks make all
 * groups, also when one of them has failed here: the others would wait in the next. */
static tr_status split(tr_mesh *mesh, tr_group *world, const int size[TR_MESH_AXES])
{
    int rank = tr_rank(world), place[TR_MESH_AXES], stride[TR_MESH_AXES];
    stride[TR_MESH_TP] = 1;
    stride[TR_MESH_DP] = size[TR_MESH_TP];
    stride[TR_MESH_PP] = size[TR_MESH_TP] * size[TR_MESH_DP];
    for (int i = 0; i < TR_MESH_AXES; i++) {
        place[i] = rank / stride[i] % size[i];
        mesh->groups[i] = tr_keep(tr_group_split(world, rank - place[i] * stride[i], place[i]));
    }
    tr_status status = TR_OK;
    for (int i = 0; i < TR_MESH_AXES && status == TR_OK; i++) status = tr_status_of(mesh->groups[i]);
    return tr__agree(world, "mesh", status, NULL);
}

tr_mesh *tr_mesh_new_with(const tr_mesh_options *options)
{
    TR__CALLED_AT(options->file, options->line);
    tr_mesh *mesh = tr__object_new(&mesh_type);
    if (mesh->object.error) return mesh;
    TR_SCOPE;
    int size[TR_MESH_AXES];
    tr_status status = options->world ? tr_status_of(options->world)
                                      : tr__fail(TR_INVALID, "mesh: it takes a group, not NULL");
    if (status == TR_OK) status = compare(options);
    if (status == TR_OK) status = measure(options, tr_world_size(options->world), size);
    if (status == TR_OK) status = split(mesh, options->world, size);
    if (status != TR_OK) tr__object_break(mesh);
    return mesh;
}

tr_group *tr_mesh_group(const tr_mesh *mesh, tr_mesh_axis axis)
{
    if (tr__error_of(mesh)) return tr__object_pass(&tr__group_type, mesh);
    if (!mesh || (unsigned)axis >= TR_MESH_AXES)
        return tr__object_fail(&tr__group_type, TR_INVALID, "mesh: no axis %d: TR_MESH_DP, TR_MESH_TP, TR_MESH_PP", (int)axis);
    return mesh->groups[axis];
}

tr_status tr_mesh_leave(tr_mesh *mesh)
{
    TR__TRY(tr_status_of(mesh));
    tr_status first = TR_OK;
    for (int i = 0; mesh && i < TR_MESH_AXES; i++) {
        tr_status status = tr_leave(mesh->groups[i]);
        if (first == TR_OK) first = status;
    }
    return first;
}
