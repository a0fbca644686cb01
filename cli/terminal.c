#include "terminal.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

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

void tr__print_line(int fd, const char *prefix, const char *line, size_t length)
{
    struct iovec parts[] = {{(char *)prefix, strlen(prefix)}, {(char *)line, length}, {"\n", 1}};
    struct iovec *part = parts, *end = parts + 3;
    while (part < end) {
        ssize_t put = writev(fd, part, (int)(end - part));
        if (put < 0 && errno == EAGAIN) poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else if (put < 0 && errno != EINTR) return;
        for (; part < end && put >= (ssize_t)part->iov_len; part++) put -= (ssize_t)part->iov_len;
        if (part < end && put > 0) {
            part->iov_base = (char *)part->iov_base + put;
            part->iov_len -= (size_t)put;
        }
    }
}

const char *tr__shell_word(const char *word, char *text, size_t bytes)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:+@%=";
    if (*word && !word[strspn(word, plain)]) return word;
    size_t used = 0;
    for (const char *at = word; used + 8 < bytes; at++) { /* what stands in '…' means itself; a ' is written '\'' */
        if (at == word) text[used++] = '\'';
        if (!*at) {
            strcpy(text + used, "'");
            return text;
        }
        if (*at == '\'') used = (size_t)(stpcpy(text + used, "'\\''") - text);
        else text[used++] = *at;
    }
    return "";
}

static void print_warning(tr_log_level level, const char *message, void *command)
{
    (void)level;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%strireme %s: ", isatty(STDERR_FILENO) ? "\r\033[K" : "", (const char *)command);
    tr__print_line(STDERR_FILENO, prefix, message, strlen(message));
}

void tr__print_warnings(const char *command)
{
    tr_set_log(print_warning, (void *)command, TR_LOG_WARN);
}
