/*
 * The store's frames as bytes, for its tests and fuzzers.
 */
#ifndef TR_TESTS_STORE_FRAMES_H
#define TR_TESTS_STORE_FRAMES_H

#include "net/store/frame.h"

#include <string.h>

static inline size_t flatten(const tr__frame *frame, unsigned char *bytes)
{
    unsigned char head[TR__FRAME_HEAD];
    struct iovec pieces[TR__FRAME_PIECES];
    size_t used = 0;
    int count = tr__frame_pieces(frame, head, pieces);
    for (int i = 0; i < count; i++) {
        memcpy(bytes + used, pieces[i].iov_base, pieces[i].iov_len);
        used += pieces[i].iov_len;
    }
    return used;
}

#endif
