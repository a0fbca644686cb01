#include "tensor/finite.h"

#include "device/device.h"
#include "tensor/list.h"
#include "tensor/numbers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A float whose exponent has all bits set is NaN or infinite. Plain counting loops, which compilers turn into vectors.
 */
#define COUNT(type, exponent)                                                                                          \
    do {                                                                                                               \
        const type *x = elements;                                                                                      \
        for (int64_t i = 0; i < n; i++) count += (x[i] & (exponent)) == (exponent);                                    \
    } while (0)

static int64_t count_not_finite(tr_dtype dtype, const void *elements, int64_t n)
{
    int64_t count = 0;
    switch (dtype) {
    case TR_F64: COUNT(uint64_t, UINT64_C(0x7ff0000000000000)); break;
    case TR_F32: COUNT(uint32_t, 0x7f800000u); break;
    case TR_F16: COUNT(uint16_t, 0x7c00); break;
    case TR_BF16: COUNT(uint16_t, 0x7f80); break;
    default: break;
    }
    return count;
}

tr__not_finite tr__find_not_finite(tr_dtype dtype, const void *elements, int64_t n, int64_t at)
{
    tr__not_finite found = {0};
    int64_t count = count_not_finite(dtype, elements, n);
    for (int64_t i = 0; i < n && found.nans + found.infinities < count; i++) {
        double value;
        tr__read_f64(&value, dtype, (const char *)elements + (size_t)i * tr_dtype_size(dtype), 1, 1);
        if (isfinite(value)) continue;
        if (!tr__has_not_finite(&found)) found.first = at + i;
        if (isnan(value))
            found.nans++;
        else
            found.infinities++;
    }
    return found;
}

void tr__add_not_finite(tr__not_finite *sum, const tr__not_finite *behind)
{
    if (!tr__has_not_finite(sum)) sum->first = behind->first;
    sum->nans += behind->nans;
    sum->infinities += behind->infinities;
}

/* "3 NaN and 1 infinite of 4096 values, the first at [0, 17]", into text, returned. */
static char *not_finite_text(const tr__not_finite *found, tr_shape shape, char text[256])
{
    tr_shape place = shape;
    int64_t index = found->first, numel = 1;
    for (int d = shape.ndim; d-- > 0; numel *= shape.dim[d], index /= shape.dim[d]) place.dim[d] = index % shape.dim[d];
    snprintf(text, 256, "%" PRId64 " NaN and %" PRId64 " infinite of %" PRId64 " values, the first at %s", found->nans,
             found->infinities, numel, tr_shape_text(place, (char[160]){0}));
    return text;
}

/* ---- Of lists ---------------------------------------------------------------------------------------------------- */

enum { PIECE = 1 << 18 /* elements that one thread looks at at once */ };

typedef struct looking {
    const char *data;
    tr_dtype dtype;
    int64_t numel;
    tr__not_finite *found; /* in each piece */
} looking;

static void look_at_pieces(void *arg, int64_t begin, int64_t end)
{
    const looking *l = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i * PIECE, n = l->numel - at < PIECE ? l->numel - at : PIECE;
        l->found[i] = tr__find_not_finite(l->dtype, l->data + (size_t)at * tr_dtype_size(l->dtype), n, at);
    }
}

static tr_status look_at(const tr_tensor *t, tr__not_finite *found)
{
    TR_SCOPE;
    *found = (tr__not_finite){0};
    if (!tr_dtype_is_float(tr_dtype_of(t))) return TR_OK;
    const tr_tensor *flat = tr__row_major_on_cpu(t);
    TR__TRY(tr_status_of(flat));
    looking l = {.data = tr__ptr(flat), .dtype = flat->dtype, .numel = tr_numel(flat)};
    int64_t pieces = (l.numel + PIECE - 1) / PIECE;
    l.found = calloc((size_t)pieces + 1, sizeof *l.found);
    if (!l.found) return tr__fail(TR_NO_MEMORY, "out of memory");
    tr__pool_for(tr__pool_of(flat), pieces, 1, look_at_pieces, &l);
    for (int64_t i = 0; i < pieces; i++) tr__add_not_finite(found, &l.found[i]);
    free(l.found);
    return TR_OK;
}

tr_status tr_check_finite(const tr_tensor_list *list)
{
    TR__TRY(tr_status_of(list));
    tr__not_finite first = {0};
    int at = -1, others = 0;
    for (int i = 0; i < tr_list_count(list); i++) {
        tr__not_finite found;
        TR__TRY(look_at(tr_list_at(list, i), &found));
        if (!tr__has_not_finite(&found)) continue;
        if (at >= 0)
            others++;
        else
            at = i, first = found;
    }
    if (at < 0) return TR_OK;
    char more[64] = "";
    if (others) snprintf(more, sizeof more, "; %d more tensor%s such numbers", others, others == 1 ? " has" : "s have");
    const tr_tensor *t = tr_list_at(list, at);
    return tr__fail(TR_INVALID, "tensor \"%s\", %s of %s, has numbers that are not finite: %s%s",
                    tr_list_name(list, at), tr_shape_text(tr_shape_of(t), (char[160]){0}),
                    tr_dtype_name(tr_dtype_of(t)), not_finite_text(&first, tr_shape_of(t), (char[256]){0}), more);
}
