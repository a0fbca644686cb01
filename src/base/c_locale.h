/* Files have decimal points, whatever the program's locale writes: numbers in C's way until the end of the block. */
#ifndef TR_BASE_C_LOCALE_H
#define TR_BASE_C_LOCALE_H

#include <locale.h>

typedef struct tr__locale {
    locale_t c, before;
} tr__locale;

static inline tr__locale tr__locale_enter(void)
{
    tr__locale l = {.c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0)};
    if (l.c) l.before = uselocale(l.c);
    return l;
}
static inline void tr__locale_leave(tr__locale *l)
{
    if (!l->c) return;
    uselocale(l->before);
    freelocale(l->c);
}
#define TR__C_NUMBERS __attribute__((cleanup(tr__locale_leave), unused)) tr__locale tr__numbers = tr__locale_enter()

#endif
