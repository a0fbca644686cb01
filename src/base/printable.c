/* Text from files, other processes and other hosts, as a terminal or a log can be given it. */
#include <trireme/base.h>

/* A control character acts on a terminal: those of ASCII, and U+0080 to U+009F, which are bytes of their own in 8-bit
 * encodings and \xc2\x80 to \xc2\x9f in UTF-8. Overlong forms, which a lenient terminal may decode to one, count too. */
char *tr_printable(char *text)
{
    unsigned char lead = 0;
    int more = 0; /* bytes that the UTF-8 character under way still has */
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (*c < 0x80) {
            if ((*c < ' ' && *c != '\n' && *c != '\t') || *c == 0x7f) *c = '?';
            more = 0;
        } else if (*c >= 0xc0) {
            lead = *c;
            more = lead < 0xc2 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : 0;
        } else if (more) {
            bool acts = ((lead == 0xc2 || lead == 0xe0) && *c < 0xa0) || (lead == 0xf0 && *c < 0x90);
            if (acts) c[-1] = *c = '?';
            more = acts ? 0 : more - 1;
            lead = 0; /* what it says is said of the next byte alone */
        } else if (*c < 0xa0) {
            *c = '?';
        }
    }
    return text;
}
