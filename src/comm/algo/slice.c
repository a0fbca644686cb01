#include "comm/algo/slice.h"

#include "base/memory.h"

tr__range tr__split(int64_t count, int parts, int index)
{
    int64_t share = count / parts, longer = count % parts; /* the first `longer` parts have one more */
    int64_t begin = share * index + (index < longer ? index : longer);
    return (tr__range){begin, begin + share + (index < longer)};
}

/* A range of elements in units of so many, as far as there are elements. */
static tr__range in_elements(tr__range units, int64_t per_unit, int64_t count)
{
    int64_t begin = units.begin * per_unit, end = units.end * per_unit;
    return (tr__range){begin < count ? begin : count, end < count ? end : count};
}

tr__range tr__slice(int64_t count, size_t element_bytes, int parts, int index)
{
    int64_t per_line = (int64_t)(TR__CACHE_LINE / element_bytes);
    return in_elements(tr__split((count + per_line - 1) / per_line, parts, index), per_line, count);
}

int64_t tr__chunk_count(int64_t count, size_t element_bytes, size_t chunk_bytes)
{
    int64_t per_chunk = (int64_t)(chunk_bytes / element_bytes);
    return count / per_chunk + (count % per_chunk > 0);
}

tr__range tr__chunk(int64_t count, size_t element_bytes, size_t chunk_bytes, int64_t index)
{
    return in_elements((tr__range){index, index + 1}, (int64_t)(chunk_bytes / element_bytes), count);
}
