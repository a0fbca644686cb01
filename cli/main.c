/* The `trireme` command: finds the subcommand and leaves the rest to it. */
#include "command.h"
#include "options.h"

#include <trireme/base.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const tr__subcommand commands[] = {
#define ROW(name, function, help) {name, function, help},
        TR__COMMANDS(ROW)
#undef ROW
        {0},
    };
    TR_SPAWN_ENTRY;
    /* A parent that ignored it would otherwise make the kernel drop our children's exit codes. */
    signal(SIGCHLD, SIG_DFL);
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("trireme %s\n", tr_version());
        return TR__EXIT_OK;
    }
    return tr__run_subcommand("", "Distributed deep-learning training. `trireme --version` prints the version.", commands, argc,
        argv);
}
