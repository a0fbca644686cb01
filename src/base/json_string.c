#include "base/json_string.h"

void tr__json_bytes(FILE *to, const void *bytes, size_t count)
{
    const unsigned char *text = bytes;
    fputc('"', to);
    for (size_t i = 0; i < count; i++) {
        if (text[i] == '"' || text[i] == '\\')
            fprintf(to, "\\%c", text[i]);
        else if (text[i] < ' ')
            fprintf(to, "\\u%04x", text[i]);
        else
            fputc(text[i], to);
    }
    fputc('"', to);
}
