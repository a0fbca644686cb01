/* Libraries of CUDA's that are opened when they are first needed, so that the plug-in runs without them. */
#ifndef TRIREME_CUDA_LIBRARY_H
#define TRIREME_CUDA_LIBRARY_H

#include "device.h"
#include "graph.h"

#include <map>
#include <mutex>
#include <type_traits>

struct library_function {
    const char *name;
    void *to; /* the pointer to it, to be set */
};

/* Opens a library and sets the pointers, up to the entry whose name is NULL. False: it is not there, or lacks one; a
 * warning says so, and `instead`: what follows from that. */
bool open_library(const char *name, const library_function *functions, const char *instead);

/* Memory of any kind: the largest power of two, up to `most`, that divides all of these addresses. */
inline int64_t alignment_of(std::initializer_list<const void *> addresses, uintptr_t most)
{
    uintptr_t bits = most;
    for (const void *address : addresses) bits |= (uintptr_t)address;
    return (int64_t)(bits & -bits);
}

/*
 * What a library has been asked for so far: a handle for each device, and a plan for each shape, which is all that a plan
 * depends on, as numbers of 64 bits, beginning with `device`. One lock for all, held by the caller, as a handle has one
 * stream and a plan's pointers are set for each call. Plans that are forgotten, and have no graph, go. A table is never
 * destroyed, as the pools of memory.
 */
template <class Shape, class Plan, class Handle> struct plan_table {
    static_assert(std::has_unique_object_representations_v<Shape>, "shapes are compared byte by byte");
    struct by_bytes {
        bool operator()(const Shape &a, const Shape &b) const { return memcmp(&a, &b, sizeof a) < 0; }
    };
    static constexpr size_t MOST = 4096; /* lengths that change in each step would fill the memory */
    std::mutex lock;
    std::map<int64_t, Handle> handles;
    std::map<Shape, std::shared_ptr<Plan>, by_bytes> plans;

    /* A shape's plan and its device's handle; create(&handle) and make(handle, plan) when they are first asked for. What
     * fails is not kept. */
    template <class Create, class Make>
    tr_status find(const Shape &s, Handle *handle, Plan **out, Create create, Make make)
    {
        outside_captures now;
        Handle &of_device = handles[s.device];
        if (!of_device) TRY(create(&of_device));
        *handle = of_device;
        auto found = plans.find(s);
        if (found == plans.end()) {
            std::shared_ptr<Plan> made(new Plan);
            TRY(make(of_device, *made));
            if (plans.size() >= MOST) plans.clear();
            found = plans.emplace(s, std::move(made)).first;
        }
        graph_keep(s.device, found->second);
        *out = found->second.get();
        return TR_OK;
    }
};

/* f32 is multiplied in full, or on tensor cores with 10 bits of its fraction, as TRIREME_CUDA_MATMUL asks. */
tr_status wants_tf32(bool *wants);

#endif
