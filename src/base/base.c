/* The small tables of <trireme/base.h>: version, status and dtype names, TR_CHECK. */
#include <trireme/base.h>

#include <stdio.h>
#include <stdlib.h>

#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x

const char *tr_version(void)
{
    return TEXT(TR_VERSION_MAJOR) "." TEXT(TR_VERSION_MINOR) "." TEXT(TR_VERSION_PATCH);
}

static const struct {
    const char *name, *text;
} statuses[] = {
#define ROW(name, text) {"TR_" #name, text},
    TR_STATUS_MAP(ROW)
#undef ROW
};

static bool is_status(tr_status status)
{
    return status >= 0 && (size_t)status < sizeof statuses / sizeof *statuses;
}

const char *tr_status_name(tr_status status)
{
    return is_status(status) ? statuses[status].name : "no tr_status";
}

const char *tr_status_text(tr_status status)
{
    return is_status(status) ? statuses[status].text : "no tr_status";
}

void tr_check_failed(tr_status status, const char *expression, const char *file, int line)
{
    /* TR_END comes without a message, and there may be one of an earlier failure. */
    const char *message = status == TR_END ? "the end of an epoch or a stream is no failure: check a loop's status by TR_CHECK_END()"
                                           : tr_error_message();
    fprintf(stderr, "%s:%d: %s\n  %s (%s) from %s\n", file, line, message, tr_status_name(status), tr_status_text(status), expression);
    exit(status == TR_PEER ? TR_EXIT_PEER : EXIT_FAILURE);
}

static const struct {
    const char *name;
    size_t bytes;
} dtypes[TR_DTYPE_COUNT] = {
#define ROW(name, text, bytes) {text, bytes},
    TR_DTYPE_MAP(ROW)
#undef ROW
};

size_t tr_dtype_size(tr_dtype dtype)
{
    return dtype < TR_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *tr_dtype_name(tr_dtype dtype)
{
    return dtype < TR_DTYPE_COUNT ? dtypes[dtype].name : "no dtype";
}

bool tr_dtype_is_float(tr_dtype dtype)
{
    return dtype <= TR_BF16;
}
