#include "tensor/names.h"

#include "base/memory.h"

#include <limits.h>
#include <search.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The tree has the addresses of texts: in front of each stands its number. */
typedef struct numbered {
    int number;
    char text[];
} numbered;

static numbered *numbered_of(char *text)
{
    return (numbered *)(void *)(text - offsetof(numbered, text));
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

int tr__names_find(const tr__names *n, const char *name)
{
    char *const *found = tfind(name, &n->tree, by_text);
    return found ? numbered_of(*found)->number : -1;
}

tr_status tr__names_add(tr__names *n, const char *name)
{
    size_t bytes = strlen(name) + 1;
    bool room = n->count < INT_MAX && tr__grow(&n->text, (size_t)n->count, &n->room, sizeof *n->text);
    numbered *made = room ? malloc(sizeof *made + bytes) : NULL;
    if (made) made->number = n->count;
    if (!made || !tsearch(memcpy(made->text, name, bytes), &n->tree, by_text)) {
        free(made);
        return tr__fail(TR_NO_MEMORY, "out of memory for name %d, of %zu bytes", n->count, bytes);
    }
    n->text[n->count++] = made->text;
    return TR_OK;
}

static void free_name(void *text)
{
    free(numbered_of(text));
}

void tr__names_free(tr__names *n)
{
    tdestroy(n->tree, free_name);
    free(n->text);
    *n = (tr__names){0};
}
