/* The `trireme` command: finds the subcommand and leaves the rest to it. */
#include "command.h"
#include "options.h"

#include <trireme/base.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*function)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
#define ROW(name, function, help) {name, function, help},
    TR__COMMANDS(ROW)
#undef ROW
};
enum { command_count = sizeof commands / sizeof *commands };

static int print_help(void)
{
    printf("Usage: trireme COMMAND [OPTION…]\n\nDistributed deep-learning training.\n\nCommands:\n");
    for (int i = 0; i < command_count; i++) printf("  %-10s %s\n", commands[i].name, commands[i].help);
    printf("\nOptions:\n  -h, --help  print this and exit\n  --version   print the version and exit\n\n"
           "`trireme COMMAND --help` says more about a command.\n");
    return TR__EXIT_OK;
}

static int unknown_command(const char *name)
{
    const char *names[command_count + 1] = {0};
    for (int i = 0; i < command_count; i++) names[i] = commands[i].name;
    const char *near = tr__nearest(name, names);
    fprintf(stderr, near ? "trireme: unknown command \"%s\": did you mean %s?\n" : "trireme: unknown command \"%s\"\n",
        name, near);
    fprintf(stderr, "Try: trireme --help\n");
    return TR__EXIT_USAGE;
}

int main(int argc, char **argv)
{
    TR_SPAWN_ENTRY;
    /* A parent that ignored it would otherwise make the kernel drop our children's exit codes. */
    signal(SIGCHLD, SIG_DFL);
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        fprintf(stderr, "trireme: a command is missing\nTry: trireme --help\n");
        return TR__EXIT_USAGE;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) return print_help();
    if (!strcmp(name, "--version")) {
        printf("trireme %s\n", tr_version());
        return TR__EXIT_OK;
    }
    for (int i = 0; i < command_count; i++)
        if (!strcmp(commands[i].name, name)) return commands[i].function(argc - 1, argv + 1);
    return unknown_command(name);
}
