#include "terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <sys/ioctl.h>

bool tr__terminal_utf8(void)
{
    setlocale(LC_CTYPE, ""); /* only how text is encoded: numbers stay as C writes them */
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

int tr__terminal_width(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}
