#include "comm/algo/slice.h"

#include "base/memory.h"

tr__range tr__slice(int64_t count, size_t element_bytes, int parts, int index)
{
    int64_t per_line = (int64_t)(TR__CACHE_LINE / element_bytes);
    int64_t lines = (count + per_line - 1) / per_line;
    int64_t share = lines / parts, longer = lines % parts; /* the first `longer` parts have a line more */
    int64_t first = share * index + (index < longer ? index : longer);
    int64_t last = first + share + (index < longer);
    tr__range range = {first * per_line, last * per_line};
    if (range.begin > count) range.begin = count;
    if (range.end > count) range.end = count;
    return range;
}

int64_t tr__chunk_count(int64_t count, size_t element_bytes, size_t chunk_bytes)
{
    int64_t per_chunk = (int64_t)(chunk_bytes / element_bytes);
    return count / per_chunk + (count % per_chunk > 0);
}

tr__range tr__chunk(int64_t count, size_t element_bytes, size_t chunk_bytes, int64_t index)
{
    int64_t per_chunk = (int64_t)(chunk_bytes / element_bytes);
    tr__range range = {per_chunk * index, per_chunk * (index + 1)};
    if (range.begin > count) range.begin = count;
    if (range.end > count) range.end = count;
    return range;
}
