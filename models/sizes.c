#include "sizes.h"

#include <stdio.h>
#include <string.h>

tr_status tr__preset_fill(const char *model, const tr__preset *presets, const char *name, int *const *into)
{
    char names[256] = "";
    size_t length = 0;
    for (const tr__preset *p = presets; p->name; p++) {
        if (name && strcmp(name, p->name) == 0) {
            for (int i = 0; into[i]; i++) *into[i] = p->sizes[i];
            return TR_OK;
        }
        const char *between = p == presets ? "" : p[1].name ? ", " : " and ";
        if (length < sizeof names) length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", between, p->name);
    }
    return tr_fail(TR_NOT_FOUND, "%s: no preset is named \"%s\": there are %s", model, name ? name : "(NULL)", names);
}
