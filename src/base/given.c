#include "base/given.h"

#include "base/object.h"

#include <string.h>

/* Past the quote that ends the literal which begins at `at`, or at the text's end. */
static const char *past_literal(const char *at)
{
    char quote = *at++;
    while (*at && *at != quote) at += *at == '\\' && at[1] ? 2 : 1;
    return *at ? at + 1 : at;
}

static bool is_in_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Does the text go on with ".name", and does the name end there? */
static bool names(const char *text, const char *name)
{
    size_t length = strlen(name);
    if (*text++ != '.') return false;
    while (*text == ' ') text++;
    return !strncmp(text, name, length) && !is_in_name(text[length]);
}

bool tr_given(const void *options, const char *name)
{
    struct {
        size_t size;
        const char *given;
    } head;
    memcpy(&head, options, sizeof head);
    if (!head.given) return false;

    /* An option begins where the text does and behind each comma that stands in no brackets. What is left of a required
     * argument in braces may close some that it does not open. */
    int depth = 0;
    bool begins = true;
    for (const char *at = head.given; *at;) {
        if (begins && names(at, name)) return true;
        if (*at != ' ') begins = false;
        if (*at == '"' || *at == '\'') {
            at = past_literal(at);
            continue;
        }
        if (strchr("([{", *at)) depth++;
        if (strchr(")]}", *at) && depth > 0) depth--;
        if (*at == ',' && depth == 0) begins = true;
        at++;
    }
    return false;
}

/* ---- Memory of a C type ---------------------------------------------------------------------------------------- */

static bool fits(int element, tr_dtype dtype, bool by_default)
{
    if (element == 0 || element == 1 + (int)dtype) return true;
    if (element == TR__ELEMENT_HALF) return dtype == TR_F16 || dtype == TR_BF16;
    if (element == 1 + TR_U8) return !by_default; /* bytes of anything, where the caller says of what */
    return element == 1 + TR_BOOL && dtype == TR_U8;
}

tr_status tr__element_check(const char *what, int element, tr_dtype dtype, bool by_default, const char *remedy)
{
    static const struct {
        const char *type, *dtype;
    } names[] = {[1 + TR_F32] = {"float", "TR_F32"}, [1 + TR_F64] = {"double", "TR_F64"}, [1 + TR_I64] = {"int64_t", "TR_I64"},
        [1 + TR_I32] = {"int", "TR_I32"}, [1 + TR_U8] = {"unsigned char", "TR_U8"}, [1 + TR_BOOL] = {"bool", "TR_BOOL"},
        [TR__ELEMENT_HALF] = {"unsigned short", "TR_BF16 or TR_F16"}};
    if (fits(element, dtype, by_default)) return TR_OK;
    const char *needed = tr_dtype_name(dtype);
    bool known = element > 0 && element < (int)(sizeof names / sizeof *names) && names[element].type;
    if (!known)
        return tr__fail(TR_DTYPE, "%s: the memory is of a C type that is no dtype, not of %s: convert it, or cast the pointer "
            "to void * where its bytes are %s", what, needed, needed);
    return tr__fail(TR_DTYPE, "%s: the memory is of %s, not of %s: %s %s, or cast the pointer to void * where its bytes are %s",
        what, names[element].type, needed, remedy, names[element].dtype, needed);
}
