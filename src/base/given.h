/* What a caller gave: options that are named, and memory of a C type beside a dtype. */
#ifndef TRIREME_BASE_GIVEN_H
#define TRIREME_BASE_GIVEN_H

#include <trireme/base.h>

#include <math.h>

/* Was an option given, be it 0 by name or TR_ZERO; and its value, or `otherwise`. */
#define TR__GIVEN(o, field) ((o)->field != 0 || signbit((double)(o)->field) || tr_given((o), #field))
#define TR__OR(o, field, otherwise) (TR__GIVEN(o, field) ? (o)->field + 0 : (otherwise))
/* The field for another struct, in which no text says what was given. */
#define TR__PASS(o, field) ((o)->field == 0 && tr_given((o), #field) ? TR_ZERO : (double)(o)->field)

/* A failure when memory whose C type is `element` (see TR__ELEMENT) is taken for dtype, which the caller may not have thought of
 * where it is but the default. remedy comes before the dtype that would fit: "from: the memory is of double, not of f32: write
 * .dtype = TR_F64, or …". */
tr_status tr__element_check(const char *what, int element, tr_dtype dtype, bool by_default, const char *remedy);

#endif
