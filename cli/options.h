/*
 * Command-line options: a command describes its options once, in a table, and the parser, its messages and --help come
 * from there.
 *
 *     int ranks = 1;
 *     bool quiet = false;
 *     const tr__option options[] = {
 *         {"ranks", 'n', "N", "processes to start", TR__INTEGER(&ranks, 1, 4096)},
 *         {"quiet", 0, NULL, "say nothing", TR__FLAG(&quiet)},
 *         {0},
 *     };
 *     const tr__syntax syntax = {"run", "PROGRAM [ARGUMENT…]", "Runs a program as the ranks of a job.", options,
 *         .operands = {1, INT_MAX}, .stop_at_operand = true};
 *     int status = tr__parse(&syntax, &argc, argv);
 *     if (status >= 0) return status;
 */
#ifndef TRIREME_CLI_OPTIONS_H
#define TRIREME_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of every command. One that a signal has stopped ends with 128 + signal. */
enum { TR__EXIT_OK = 0, TR__EXIT_FAILED = 1, TR__EXIT_USAGE = 2 };

#define TR__SIZES_MAX 64
/* Numbers of bytes, "8,64K,4M,1G": K, M and G are powers of 1,024. */
typedef struct tr__sizes {
    int count;
    int64_t bytes[TR__SIZES_MAX];
} tr__sizes;

typedef struct tr__option {
    const char *name;   /* --name; NULL ends a table */
    char letter;        /* -n, or 0 */
    const char *value;  /* what its value is called in the help; NULL: it takes none */
    const char *help;
    enum { TR__OPTION_FLAG, TR__OPTION_INTEGER, TR__OPTION_NUMBER, TR__OPTION_TEXT, TR__OPTION_SIZES } type;
    void *into;         /* holds the default before, and the given value after */
    double least, most; /* of numbers, both included */
    const char *const *choices; /* the texts that are allowed, NULL-terminated; NULL: any */
    bool required;
    bool writes; /* names a file that is written in the end */
} tr__option;

/* The rest of a row. The conditional makes the compiler check the type of the variable. */
#define TR__INTO(type, pointer) .into = (1 ? (pointer) : (type *)NULL)
#define TR__FLAG(pointer) .type = TR__OPTION_FLAG, TR__INTO(bool, pointer)
#define TR__INTEGER(pointer, from, to) .type = TR__OPTION_INTEGER, TR__INTO(int, pointer), .least = (from), .most = (to)
#define TR__NUMBER(pointer, from, to) .type = TR__OPTION_NUMBER, TR__INTO(double, pointer), .least = (from), .most = (to)
#define TR__TEXT(pointer) .type = TR__OPTION_TEXT, TR__INTO(const char *, pointer)
#define TR__OUTPUT(pointer) TR__TEXT(pointer), .writes = true
#define TR__CHOICE(pointer, ...) TR__TEXT(pointer), .choices = (const char *const[]){__VA_ARGS__, NULL}
#define TR__SIZES(pointer) .type = TR__OPTION_SIZES, TR__INTO(tr__sizes, pointer)

typedef struct tr__syntax {
    const char *command;       /* "run", or "train gpt" */
    const char *usage;         /* what follows the options: "PROGRAM [ARGUMENT…]"; NULL: nothing */
    const char *about;         /* a sentence or more; may hold newlines */
    const tr__option *options;
    struct { int least, most; } operands; /* how many there may be */
    bool stop_at_operand;      /* options end at the first operand: what follows belongs to another program */
    uint64_t *given;           /* NULL, or where bit i says whether options[i] was given, by whichever of its names */
} tr__syntax;

/* Reads argv[1] and what follows. Returns -1 when the command is to go on: *argc operands are then at argv[0] and on,
 * NULL-terminated. Otherwise the exit code: TR__EXIT_OK after --help, TR__EXIT_USAGE after a message on stderr. */
int tr__parse(const tr__syntax *syntax, int *argc, char **argv);

/* The row of that name; NULL when there is none. */
const tr__option *tr__option_named(const tr__option *options, const char *name);
/* Sets one option as the command line would; the text must outlive it. name: what messages call it. False after one. */
bool tr__option_set(const char *command, const tr__option *option, const char *name, const char *value);

/* "trireme run: message" on stderr, of command "" "trireme: message". Returns TR__EXIT_FAILED. */
int tr__complain(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The library's latest failure as such a message. */
int tr__failed(const char *command);
/* TR__EXIT_OK when all that was printed was written; else, as on a full disk, such a message. */
int tr__printed(const char *command);
/* Such a message about options that do not go together: TR__EXIT_USAGE. */
#define TR__MISUSE(...) (tr__complain(__VA_ARGS__), TR__EXIT_USAGE)

/* `return` on failure, of functions that return a tr_status. */
#define TRY(expression)                             \
    do {                                            \
        tr_status try_status = (expression);        \
        if (try_status != TR_OK) return try_status; \
    } while (0)

/* A command of commands: "trireme checkpoint verify". A function gets its own name as argv[0] and returns the exit code. */
typedef struct tr__subcommand {
    const char *name; /* or several, with ", " between */
    int (*function)(int argc, char **argv);
    const char *help;
} tr__subcommand;
/* Calls the one that argv[1] names, or lists all of them where --help asks for it. command: "" for `trireme` itself. about: what
 * they are for. A row without a name ends them. */
int tr__run_subcommand(const char *command, const char *about, const tr__subcommand *all, int argc, char **argv);

/* Is it a word of the list "cpu,cpuacct" or "all-reduce, reduce"? */
bool tr__is_listed(const char *word, const char *list);

/* The word most like this one, NULL when none is like it. For "did you mean". */
const char *tr__nearest(const char *word, const char *const *words);

#endif
