#include "base/copy.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE = 64, AHEAD = 16 * LINE /* from where lines are asked for */ };

void tr__copy_past_caches(void *to, const void *from, size_t bytes)
{
    char *out = to;
    const char *in = from;
    size_t head = -(uintptr_t)out % LINE;
    if (head > bytes) head = bytes;
    memcpy(out, in, head);
    for (out += head, in += head, bytes -= head; bytes >= LINE; out += LINE, in += LINE, bytes -= LINE) {
        _mm_prefetch(in + AHEAD, _MM_HINT_NTA);
        for (int i = 0; i < LINE; i += 16)
            _mm_stream_si128((__m128i *)(out + i), _mm_loadu_si128((const __m128i *)(in + i)));
    }
    _mm_sfence(); /* before anybody is told that it is there */
    memcpy(out, in, bytes);
}
#else
void tr__copy_past_caches(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

/* sysconf() would tell of a socket's caches together, of which a core uses one. */
size_t tr__shared_cache(void)
{
    size_t kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re"); /* "32768K" */
    if (f && fscanf(f, "%zuK", &kib) != 1) kib = 0; // NOLINT(cert-err34-c): a damaged number counts as 0
    if (f) fclose(f);
    return (kib ? kib : 32 << 10) << 10;
}
