#include "net/cookie.h"

#include "base/object.h"

#include <sys/random.h>

tr_status tr__random_text(char *text, size_t bytes)
{
    unsigned char random[64];
    if (bytes / 2 > sizeof random) return tr__fail(TR_INVALID, "%zu random digits are too many", bytes - 1);
    if (getrandom(random, bytes / 2, 0) != (ssize_t)(bytes / 2))
        return tr__fail(TR_IO, "no random numbers from the kernel");
    for (size_t i = 0; i + 1 < bytes; i++) text[i] = "0123456789abcdef"[random[i / 2] >> (i % 2 * 4) & 15];
    text[bytes - 1] = 0;
    return TR_OK;
}
