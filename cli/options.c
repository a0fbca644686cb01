#include "options.h"

#include <trireme/base.h>

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tr__complain(const char *command, const char *format, ...)
{
    char text[8192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "trireme%s%s: %s\n", *command ? " " : "", command, tr_printable(text));
    return TR__EXIT_FAILED;
}

int tr__failed(const char *command)
{
    return tr__complain(command, "%s", tr_error_message());
}

int tr__printed(const char *command)
{
    bool lost = fflush(stdout) != 0;
    return lost || ferror(stdout) ? tr__complain(command, "cannot write to stdout: %s", strerror(errno)) : TR__EXIT_OK;
}

/* ---- The nearest word -------------------------------------------------------------------------------------------- */

enum { word_length = 40 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance: insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
static int distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > word_length || m > word_length) return INT_MAX;
    int d[word_length + 1][word_length + 1];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= m; j++) {
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[n][m];
}

const char *tr__nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    int length = (int)strlen(word), allowed = length < 3 ? 1 : 1 + length / 3, best_distance = allowed + 1;
    for (; *words; words++) {
        bool begins = length > 1 && !strncmp(word, *words, (size_t)length);
        int d = begins ? 1 : distance(word, *words);
        if (d >= best_distance) continue;
        best = *words;
        best_distance = d;
    }
    return best;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* What an option is called in messages: as the user wrote it. */
typedef struct given {
    const char *command;
    const tr__option *option;
    const char *name; /* "--ranks" or "-n" */
} given;

static bool bad_value(const given *g, const char *value, const char *wanted)
{
    tr__complain(g->command, "%s takes %s, not \"%s\"", g->name, wanted, value);
    return false;
}

static bool set_number(const given *g, const char *value)
{
    const tr__option *o = g->option;
    bool whole = o->type == TR__OPTION_INTEGER;
    char *end;
    errno = 0;
    double number = whole ? (double)strtoll(value, &end, 10) : strtod(value, &end);
    bool read = *value && !isspace((unsigned char)*value) && !*end && !isnan(number);
    if (read && number >= o->least && number <= o->most && !(whole && errno)) {
        if (whole) *(int *)o->into = (int)number;
        else *(double *)o->into = number;
        return true;
    }
    char wanted[96];
    const char *kind = whole ? "a whole number" : "a number";
    bool bounded = o->most < (whole ? INT_MAX : HUGE_VAL);
    if (bounded) snprintf(wanted, sizeof wanted, "%s from %.12g to %.12g", kind, o->least, o->most);
    else snprintf(wanted, sizeof wanted, "%s of %.12g or more", kind, o->least);
    return bad_value(g, value, wanted);
}

static bool set_text(const given *g, const char *value)
{
    const char *const *choices = g->option->choices;
    if (!*value) return bad_value(g, value, "a text that is not empty");
    for (int i = 0; choices && choices[i]; i++)
        if (!strcmp(choices[i], value)) choices = NULL;
    if (!choices) {
        *(const char **)g->option->into = value;
        return true;
    }
    char wanted[256] = "one of";
    for (int i = 0; choices[i]; i++)
        snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%s %s", i ? "," : "", choices[i]);
    return bad_value(g, value, wanted);
}

static const char *read_size(const char *text, int64_t *bytes)
{
    char *end;
    if (!isdigit((unsigned char)*text)) return NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    static const char units[] = "KMG";
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (errno || number < 1 || number > (INT64_MAX >> shift)) return NULL;
    *bytes = (int64_t)number << shift;
    return end + (unit != NULL);
}

static bool set_sizes(const given *g, const char *value)
{
    tr__sizes sizes = {0};
    const char *at = value;
    do {
        if (sizes.count) at++;
        at = sizes.count < TR__SIZES_MAX ? read_size(at, &sizes.bytes[sizes.count]) : NULL;
        sizes.count++;
    } while (at && *at == ',');
    if (!at || *at) return bad_value(g, value, "up to 64 sizes in bytes such as 8,64K,4M");
    *(tr__sizes *)g->option->into = sizes;
    return true;
}

const tr__option *tr__option_named(const tr__option *options, const char *name)
{
    for (const tr__option *o = options; o->name; o++)
        if (!strcmp(o->name, name)) return o;
    return NULL;
}

bool tr__option_set(const char *command, const tr__option *option, const char *name, const char *value)
{
    const given g = {command, option, name};
    switch (option->type) {
    case TR__OPTION_FLAG: *(bool *)option->into = true; return true;
    case TR__OPTION_INTEGER:
    case TR__OPTION_NUMBER: return set_number(&g, value);
    case TR__OPTION_TEXT: return set_text(&g, value);
    case TR__OPTION_SIZES: return set_sizes(&g, value);
    }
    return false;
}

/* ---- Help -------------------------------------------------------------------------------------------------------- */

static int count_options(const tr__syntax *syntax)
{
    int n = 0;
    while (syntax->options[n].name) n++;
    return n;
}

static void print_default(const tr__option *o)
{
    if (o->required) printf(" (required)");
    else if (o->type == TR__OPTION_INTEGER && *(int *)o->into > 0) printf(" (default %d)", *(int *)o->into);
    else if (o->type == TR__OPTION_NUMBER && *(double *)o->into > 0) printf(" (default %g)", *(double *)o->into);
    else if (o->type == TR__OPTION_TEXT && *(char **)o->into) printf(" (default %s)", *(char **)o->into);
}

static void print_row(char letter, const char *name, const char *value, const char *help)
{
    char left[64];
    char dash[] = {letter ? '-' : ' ', letter ? letter : ' ', letter ? ',' : ' ', '\0'};
    snprintf(left, sizeof left, "  %s --%s%s%s", dash, name, value ? " " : "", value ? value : "");
    printf(strlen(left) > 26 ? "%s\n%28s%s" : "%-26s  %s%s", left, strlen(left) > 26 ? "" : help,
        strlen(left) > 26 ? help : "");
}

static void print_help(const tr__syntax *syntax)
{
    printf("Usage: trireme %s%s%s%s\n\n%s\n\nOptions:\n", syntax->command, count_options(syntax) ? " [OPTION…]" : "",
        syntax->usage ? " " : "", syntax->usage ? syntax->usage : "", syntax->about);
    for (const tr__option *o = syntax->options; o->name; o++) {
        print_row(o->letter, o->name, o->value, o->help);
        for (int i = 0; o->choices && o->choices[i]; i++) printf("%s%s", i ? ", " : ": ", o->choices[i]);
        print_default(o);
        putchar('\n');
    }
    print_row('h', "help", NULL, "print this and exit");
    putchar('\n');
}

/* ---- Parsing ----------------------------------------------------------------------------------------------------- */

static int advise(const tr__syntax *syntax)
{
    fprintf(stderr, "Try: trireme %s --help\n", syntax->command);
    return TR__EXIT_USAGE;
}
#define WRONG(syntax, ...) (tr__complain((syntax)->command, __VA_ARGS__), advise(syntax))

static int unknown_option(const tr__syntax *syntax, const char *argument, size_t length)
{
    int n = count_options(syntax);
    const char *names[n + 2];
    for (int i = 0; i < n; i++) names[i] = syntax->options[i].name;
    names[n] = "help";
    names[n + 1] = NULL;
    char word[word_length + 1];
    snprintf(word, sizeof word, "%.*s", (int)length - 2, argument + 2);
    const char *near = length > 2 && argument[1] == '-' ? tr__nearest(word, names) : NULL;
    return WRONG(syntax, near ? "unknown option %.*s: did you mean --%s?" : "unknown option %.*s", (int)length, argument, near);
}

static const tr__option *find_option(const tr__syntax *syntax, const char *argument, size_t length)
{
    bool is_long = argument[1] == '-';
    for (const tr__option *o = syntax->options; o->name; o++) {
        if (is_long ? strlen(o->name) == length - 2 && !strncmp(o->name, argument + 2, length - 2)
                    : o->letter == argument[1])
            return o;
    }
    return NULL;
}

/* Reads the option at argv[*at], and its value there ("--name=value", "-nvalue") or behind. Moves *at to the last one read. */
static int read_option(const tr__syntax *syntax, char **argv, int *at, uint64_t *seen)
{
    const char *argument = argv[*at];
    size_t length = argument[1] == '-' ? strcspn(argument, "=") : 2;
    const tr__option *o = find_option(syntax, argument, length);
    if (!o) return unknown_option(syntax, argument, argument[1] == '-' ? length : strlen(argument));

    char name[word_length + 1];
    snprintf(name, sizeof name, "%.*s", (int)length, argument);
    const char *value = argument[length] ? argument + length + (argument[1] == '-') : NULL;
    if (o->type == TR__OPTION_FLAG && value) return WRONG(syntax, "%s takes no value", name);
    if (o->type != TR__OPTION_FLAG && !value) {
        value = argv[*at + 1];
        if (!value || !strncmp(value, "--", 2)) return WRONG(syntax, "%s needs a value: %s %s", name, name, o->value);
        ++*at;
    }
    *seen |= (uint64_t)1 << (o - syntax->options);
    return tr__option_set(syntax->command, o, name, value) ? -1 : advise(syntax);
}

static int check_complete(const tr__syntax *syntax, uint64_t seen, int operands, char **argv)
{
    for (const tr__option *o = syntax->options; o->name; o++) {
        if (o->required && !(seen >> (o - syntax->options) & 1))
            return WRONG(syntax, "--%s %s is missing: %s", o->name, o->value, o->help);
    }
    if (operands > syntax->operands.most) return WRONG(syntax, "unexpected \"%s\"", argv[syntax->operands.most]);
    if (operands < syntax->operands.least)
        return WRONG(syntax, "something is missing: trireme %s %s", syntax->command, syntax->usage);
    return -1;
}

int tr__parse(const tr__syntax *syntax, int *argc, char **argv)
{
    int operands = 0, status = -1, at = 1;
    uint64_t seen = 0; /* bit i: options[i]; a table has up to 64 rows */
    for (; at < *argc && status < 0; at++) {
        const char *argument = argv[at];
        if (!strcmp(argument, "--help") || !strcmp(argument, "-h")) {
            print_help(syntax);
            return TR__EXIT_OK;
        }
        bool is_operand = argument[0] != '-' || !argument[1];
        if (!strcmp(argument, "--") || (is_operand && syntax->stop_at_operand)) {
            at += !is_operand;
            break;
        }
        if (is_operand) argv[operands++] = argv[at];
        else status = read_option(syntax, argv, &at, &seen);
    }
    if (syntax->given) *syntax->given = seen;
    if (status >= 0) return status;
    while (at < *argc) argv[operands++] = argv[at++];
    argv[operands] = NULL;
    *argc = operands;
    return check_complete(syntax, seen, operands, argv);
}

/* ---- Commands of commands ---------------------------------------------------------------------------------------- */

bool tr__is_listed(const char *word, const char *list)
{
    size_t length = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, ","), at += strspn(at, ", "))
        if (strcspn(at, ",") == length && !strncmp(at, word, length)) return true;
    return false;
}

int tr__run_subcommand(const char *command, const char *about, const tr__subcommand *all, int argc, char **argv)
{
    enum { MOST = 32 };
    const char *what = argc > 1 ? argv[1] : NULL, *names[MOST + 1] = {0}, *between = *command ? " " : "";
    char list[512] = "", words[512], *rest = NULL;
    for (const tr__subcommand *c = all; c->name; c++) {
        if (what && tr__is_listed(what, c->name)) return c->function(argc - 1, argv + 1);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", c > all ? ", " : "", c->name);
    }
    if (what && (!strcmp(what, "--help") || !strcmp(what, "-h"))) {
        printf("Usage: trireme%s%s COMMAND [OPTION…]\n\n%s\n\nCommands:\n", between, command, about);
        for (const tr__subcommand *c = all; c->name; c++)
            printf(strlen(c->name) > 13 ? "  %s\n%16s%s\n" : "  %-13s %s%s\n", c->name, strlen(c->name) > 13 ? "" : c->help,
                strlen(c->name) > 13 ? c->help : "");
        printf("\n`trireme%s%s COMMAND --help` says more about a command.\n", between, command);
        return TR__EXIT_OK;
    }
    memcpy(words, list, sizeof words);
    for (int i = 0; i < MOST && (names[i] = strtok_r(i ? NULL : words, ", ", &rest)); i++) continue;
    const char *near = what ? tr__nearest(what, names) : NULL;
    if (near) tr__complain(command, "there is no \"%s\": did you mean %s?", what, near);
    else if (what) tr__complain(command, "there is no \"%s\": there are %s", what, list);
    else tr__complain(command, "say what to do: %s", list);
    fprintf(stderr, "Try: trireme%s%s --help\n", between, command);
    return TR__EXIT_USAGE;
}
