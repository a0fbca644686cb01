#include "comm/join/job_place.h"

#include "base/object.h"

#include <errno.h>
#include <stdlib.h>

tr_status tr__environment_number(const char *name, const char *text, int least, int most, int *number)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!text[0] || *end) return tr__fail(TR_INVALID, "%s=%s is not a number", name, text);
    if (errno || value < least || value > most)
        return tr__fail(TR_INVALID, "%s=%s is not in %d … %d", name, text, least, most);
    *number = (int)value;
    return TR_OK;
}
