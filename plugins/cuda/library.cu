#include "library.h"

#include <stdio.h>
#include <stdlib.h>

bool open_library(const char *name, const library_function *functions, const char *instead)
{
    outside_captures now;
    char text[256];
    void *library = tr_library_open(name), *found = library;
    const library_function *f = functions;
    for (; found && f->name; f++) {
        found = tr_library_find(library, f->name);
        if (!found) break;
        memcpy(f->to, &found, sizeof found);
    }
    if (found) return true;
    snprintf(text, sizeof text, "cuda: %s %s%s%s: %s. LD_LIBRARY_PATH may name its folder", name,
             library ? "has no " : "cannot be opened", library ? f->name : "", library ? "()" : "", instead);
    if (host->log) host->log(TR_LOG_WARN, text);
    return false;
}

tr_status wants_tf32(bool *wants)
{
    static const char *const text = getenv("TRIREME_CUDA_MATMUL");
    *wants = text && strcmp(text, "tf32") == 0;
    if (*wants || !text || !*text) return TR_OK;
    return host->fail(TR_INVALID, "TRIREME_CUDA_MATMUL is \"%s\": it may be tf32, or unset", text);
}
