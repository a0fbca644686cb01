/* trireme algorithms: the table that chooses the algorithms of collectives between hosts. */
#include "command.h"
#include "options.h"

#include <trireme/comm.h>

#include <stdio.h>
#include <stdlib.h>

int tr__cli_algorithms(int argc, char **argv)
{
    int ranks = 0;
    const tr__option options[] = {
        {"ranks", 'n', "N", "only what counts for so many ranks", TR__INTEGER(&ranks, 1, 1 << 20)},
        {0},
    };
    const tr__syntax syntax = {"algorithms", "[TABLE]",
        "Prints the table that chooses the algorithms of collectives between hosts: of the rows for a collective, the first\n"
        "that fits the ranks and the bytes that each of them gives counts. TABLE is rows, or @FILE with a file of them;\n"
        "without it, TRIREME_ALGORITHMS. The built-in rows follow. What is printed can be given to a job as\n"
        "TRIREME_ALGORITHMS=@FILE. `trireme bench tune` measures a table.",
        options, .operands = {0, 1}};
    int status = tr__parse(&syntax, &argc, argv);
    if (status >= 0) return status;

    char *text = tr_algorithms(argc > 0 ? argv[0] : NULL, ranks);
    if (!text) return tr__failed("algorithms");
    fputs(text, stdout);
    free(text);
    return tr__printed("algorithms");
}
