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

/* tr__name_like() of the first `size` characters of pattern. */
static bool like(const char *name, const char *pattern, size_t size, const char **run, size_t *length)
{
    size_t n = strlen(name);
    const char *star = memchr(pattern, '*', size);
    if (!star) {
        *run = name;
        *length = 0;
        return n == size && memcmp(name, pattern, n) == 0;
    }
    size_t before = (size_t)(star - pattern), behind = size - before - 1;
    if (n < before + behind || memcmp(name, pattern, before) != 0) return false;
    *run = name + before;
    *length = n - before - behind;
    return memcmp(*run + *length, star + 1, behind) == 0;
}

bool tr__name_like(const char *name, const char *pattern, const char **run, size_t *length)
{
    return like(name, pattern, strlen(pattern), run, length);
}

/* Is name like one of the words of patterns? */
static bool like_one_of(const char *name, const char *patterns)
{
    const char *run;
    size_t length;
    for (const char *at = patterns; at && *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        if (n && like(name, at, n, &run, &length)) return true;
        at += n;
    }
    return false;
}

/* All differences; the last, of those that are not allowed. */
typedef struct comparison {
    difference missing, extra, other, cast;
    int loaded, refused, refused_shapes;
} comparison;

static void compare(comparison *c, const char *whose, const tr_tensor_list *into, const tr_tensor_list *from,
    const char *partial)
{
    for (int i = 0; i < tr_list_count(into); i++) {
        const char *name = tr_list_name(into, i);
        const tr_tensor *have = tr_list_at(into, i), *given = tr_list_find(from, name);
        bool fits = given && tr__shape_equal(have->shape, given->shape), refused = !fits && !like_one_of(name, partial);
        if (!given)
            note(&c->missing, "%s", name);
        else if (!fits)
            note(&c->other, "%s: %s, where %s has %s", name, TR__TEXT(given->shape), whose, TR__TEXT(have->shape));
        else if (given->dtype != have->dtype)
            note(&c->cast, "%s: %s to %s", name, tr_dtype_name(given->dtype), tr_dtype_name(have->dtype));
        c->loaded += fits;
        c->refused += refused;
        c->refused_shapes += refused && given;
    }
    for (int i = 0; i < tr_list_count(from); i++) {
        const char *name = tr_list_name(from, i);
        if (tr_list_find(into, name)) continue;
        note(&c->extra, "%s", name);
        c->refused += !like_one_of(name, partial);
    }
}

tr_status tr__list_match(const char *what, const char *whose, const tr_tensor_list *into, const tr_tensor_list *from,
    const char *partial, tr_load_report *report)
{
    tr_load_report ignored;
    if (!report) report = &ignored;
    *report = (tr_load_report){.loaded = 0};
    if (!from) return tr__fail(TR_INVALID, "%s: the state is NULL", what);
    TR__TRY(tr_status_of(from));
    comparison c = {.loaded = 0};
    compare(&c, whose, into, from, partial);
    bool nothing = c.loaded == 0 && tr_list_count(into) > 0, fails = c.refused || nothing;
    *report = (tr_load_report){fails ? 0 : c.loaded, fails ? 0 : c.cast.count, c.missing.count, c.extra.count, c.other.count, ""};

    char *text = report->text, unknown[128];
    if (!fails) snprintf(text, sizeof report->text, "%d of %d loaded", c.loaded, tr_list_count(into));
    if (!fails) tell(text, sizeof report->text, &c.cast, "of them cast");
    snprintf(unknown, sizeof unknown, "that %s does not have", whose);
    tell(text, sizeof report->text, &c.missing, "missing");
    tell(text, sizeof report->text, &c.extra, unknown);
    tell(text, sizeof report->text, &c.other, "of another shape");
    tr_printable(text); /* names are the file's */
    if (!fails) return TR_OK;
    return tr__fail(c.refused_shapes && c.refused_shapes == c.refused ? TR_SHAPE : TR_NOT_FOUND,
        "%s: nothing was changed, the state does not fit %s: %s", what, whose, text);
}

tr_status tr__list_copy(const tr_tensor_list *into, const tr_tensor_list *from)
{
    for (int i = 0; i < tr_list_count(into); i++) {
        tr_tensor *to = tr_list_at(into, i);
        const tr_tensor *given = tr_list_find(from, tr_list_name(into, i));
        if (given && tr__shape_equal(given->shape, to->shape)) TR__TRY(tr_copy_into(to, given));
    }
    return TR_OK;
}
