/*
 * Capturing what a thread enqueues on a device into a graph (the functions capture_begin() … of trireme/device.h),
 * and what must not happen meanwhile: nothing has run yet, so nothing can be read, waited for or taken from the
 * host's memory.
 *
 * While a thread captures, kernels and allocations on the device go into the graph. Of a kernel whose attributes
 * change from run to run the graph keeps the number that the device gave it, and its source: a number that what is
 * above gives to whoever knows the attributes of the next run (autograd/capture.h).
 */
#ifndef TR_DEVICE_CAPTURE_H
#define TR_DEVICE_CAPTURE_H

#include "device/device.h"

/* A kernel that gets other attributes before each launch. */
typedef struct tr__live_kernel {
    int number;      /* the device's */
    uint64_t source;
    void *attrs;     /* those of the last launch, or of the capture */
} tr__live_kernel;

/* A graph, while it is captured and later. */
typedef struct tr__capture {
    tr_device device;
    const tr_device_table *table;
    tr_device_graph *graph; /* NULL: there is none */
    uint64_t source;        /* whose attributes the next kernel has; 0: they stay as they are */
    tr__live_kernel *lives;
    int n_lives;
    size_t lives_room;
    struct tr__captured_constant *constants; /* copies of the host's memory that the graph reads */
    /* A leaf's gradient is cleared, written or added to, before that happens; reads: it matters whether there is
     * one. */
    tr_status (*leaf)(struct tr__capture *capture, struct tr_tensor *leaf, bool reads);
    struct tr__error *failure; /* the first thing that cannot be captured: also when the caller did not look */
} tr__capture;

/* Can the device capture at all? */
bool tr__capture_possible(tr_device device);
/* The calling thread captures from now on; capture is zeroed. TR_DECLINED: the device cannot now. */
tr_status tr__capture_begin(tr__capture *capture, tr_device device);
/* The end, with the status of what was captured. On failure there is no graph. */
tr_status tr__capture_end(tr__capture *capture, tr_status status);
void tr__capture_free(tr__capture *capture);

/* What the calling thread captures; NULL: nothing. */
tr__capture *tr__capture_now(void);
/* A failure when the calling thread captures: what it did, and what to do instead. */
tr_status tr__capture_refuse(const char *what, const char *instead);
/* A failure when the calling thread captures another device than this. */
tr_status tr__capture_check_device(tr_device device);
/* Notes a kernel that was captured. number: what it set tr_kernel_call.live to, at first -1. */
tr_status tr__capture_kernel(tr__capture *capture, const char *op, int number, const void *attrs, size_t attrs_size);
/* Enqueues a copy of bytes from the host that is the same in each run. */
tr_status tr__capture_constant(tr__capture *capture, void *to, const void *from, size_t bytes);

#endif
