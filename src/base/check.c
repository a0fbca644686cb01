#include "base/check.h"

#include "base/object.h"

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

tr_status tr__check_words(void)
{
    const char *text = getenv("TRIREME_CHECK"), *known[] = {"", "0", "1", "nan", "inf", "sync", "wire", "replicas"};
    for (const char *at = text; at && *at;) {
        size_t n = strcspn(at, ","), i = 0, most = sizeof known / sizeof *known;
        while (i < most && (strlen(known[i]) != n || memcmp(at, known[i], n) != 0)) i++;
        if (i == most)
            return tr__fail(TR_INVALID, "TRIREME_CHECK=%s: \"%.*s\" is neither 1 nor nan, inf, sync, wire or replicas", text,
                            (int)n, at);
        at += n + (at[n] == ',');
    }
    return TR_OK;
}
