#include "base/function_place.h"

#include "base/hash.h"
#include "base/object.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

/* The object that holds an address, or the object of a name. */
typedef struct search {
    const char *name;
    uintptr_t address;
    tr__function_place found;
    uintptr_t base;
} search;

static bool holds(const struct dl_phdr_info *o, uintptr_t address)
{
    for (int i = 0; i < o->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &o->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && address - (o->dlpi_addr + p->p_vaddr) < p->p_memsz) return true;
    }
    return false;
}

static int look_at(struct dl_phdr_info *o, size_t size, void *user)
{
    (void)size;
    search *s = user;
    if (s->name ? strcmp(o->dlpi_name, s->name) != 0 : !holds(o, s->address)) return 0;
    if (strlen(o->dlpi_name) >= sizeof s->found.object) return 0;
    strcpy(s->found.object, o->dlpi_name);
    s->found.layout = tr__hash(TR__HASH_BEGIN, o->dlpi_phdr, o->dlpi_phnum * sizeof *o->dlpi_phdr);
    s->base = o->dlpi_addr;
    return 1;
}

tr_status tr__place_of(tr__any_function function, tr__function_place *out)
{
    search s = {.address = (uintptr_t)function};
    if (!function || !dl_iterate_phdr(look_at, &s))
        return tr__fail(TR_INVALID, "spawn: the function is not in this program or in a library that it has loaded");
    s.found.offset = s.address - s.base;
    *out = s.found;
    return TR_OK;
}

tr_status tr__place_function(const tr__function_place *p, tr__any_function *function)
{
    search s = {.name = p->object};
    bool found = dl_iterate_phdr(look_at, &s);
    if (!found && *p->object && dlopen(p->object, RTLD_NOW | RTLD_GLOBAL)) found = dl_iterate_phdr(look_at, &s);
    if (!found) return tr__fail(TR_NOT_FOUND, "spawn: %s, which holds the function, cannot be loaded", p->object);
    if (s.found.layout != p->layout)
        return tr__fail(TR_MISMATCH, "spawn: %s was built anew while the program ran",
            *p->object ? p->object : "the program");
    *function = (tr__any_function)(s.base + p->offset);
    return TR_OK;
}
