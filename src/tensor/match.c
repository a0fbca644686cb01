#include "tensor/match.h"

#include <stdio.h>
#include <string.h>

enum { NAMED = 3 }; /* of each kind of difference, in a message */

/* "2 missing (a, b)", growing; names after the first few are only counted. */
typedef struct difference {
    int count;
    size_t length;
    char names[256];
} difference;

static TR_PRINTF(2, 3) void note(difference *d, const char *format, ...)
{
    if (d->count++ >= NAMED || d->length >= sizeof d->names - 1) return;
    size_t left = sizeof d->names - d->length;
    va_list arguments;
    va_start(arguments, format);
    int comma = snprintf(d->names + d->length, left, "%s", d->length ? ", " : "");
    int more = vsnprintf(d->names + d->length + comma, left - (size_t)comma, format, arguments);
    va_end(arguments);
    if (more < 0 || (size_t)(comma + more) >= left)
        d->length = sizeof d->names - 1; /* cut off */
    else
        d->length += (size_t)(comma + more);
}

static void tell(char *text, size_t bytes, const difference *d, const char *what)
{
    if (!d->count) return;
    size_t length = strlen(text);
    snprintf(text + length, bytes - length, "%s%d %s (%s%s)", length ? "; " : "", d->count, what, d->names,
        d->count > NAMED ? ", …" : "");
}

tr_status tr__list_match(const char *what, const char *whose, const tr_tensor_list *into, const tr_tensor_list *from)
{
    if (!from) return tr__fail(TR_INVALID, "%s: the state is NULL", what);
    TR__TRY(tr_status_of(from));
    difference missing = {0}, extra = {0}, other = {0};
    for (int i = 0; i < tr_list_count(into); i++) {
        const char *name = tr_list_name(into, i);
        const tr_tensor *have = tr_list_at(into, i), *given = tr_list_find(from, name);
        if (!given)
            note(&missing, "%s", name);
        else if (!tr__shape_equal(have->shape, given->shape))
            note(&other, "%s: %s, where %s has %s", name, TR__TEXT(given->shape), whose, TR__TEXT(have->shape));
    }
    for (int i = 0; i < tr_list_count(from); i++)
        if (!tr_list_find(into, tr_list_name(from, i))) note(&extra, "%s", tr_list_name(from, i));
    if (!missing.count && !extra.count && !other.count) return TR_OK;

    char text[900] = "", unknown[128];
    snprintf(unknown, sizeof unknown, "that %s does not have", whose);
    tell(text, sizeof text, &missing, "missing");
    tell(text, sizeof text, &extra, unknown);
    tell(text, sizeof text, &other, "of another shape");
    return tr__fail(other.count && !missing.count && !extra.count ? TR_SHAPE : TR_NOT_FOUND,
        "%s: nothing was changed, the state does not fit %s: %s", what, whose, text);
}

tr_status tr__list_copy(const tr_tensor_list *into, const tr_tensor_list *from)
{
    for (int i = 0; i < tr_list_count(into); i++)
        TR__TRY(tr_copy_into(tr_list_at(into, i), tr_list_find(from, tr_list_name(into, i))));
    return TR_OK;
}
