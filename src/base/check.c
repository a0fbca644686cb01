#include "base/check.h"

#include <stdlib.h>
#include <string.h>

bool tr__check_asks(const char *word)
{
    const char *at = getenv("TRIREME_CHECK");
    size_t length = strlen(word);
    while (at && *at) {
        size_t n = strcspn(at, ",");
        if (n == length && memcmp(at, word, n) == 0) return true;
        at += n + (at[n] == ',');
    }
    return false;
}
