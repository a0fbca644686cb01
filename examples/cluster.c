/*
 * A job on the machines of a hosts file, which are reached by ssh: `./cluster HOSTS PROGRAM [ARGUMENT…]`. Without arguments:
 * two ranks on this machine that say who they are.
 */
#include <stdio.h>
#include <string.h>
#include <trireme/trireme.h>

static void say(const tr_cluster_host *host, tr_status status, int cores, const char *text, void *user)
{
    (void)user;
    if (status == TR_OK) printf("%s: %d ranks on %d cores\n", host->name, host->slots, cores);
    else fprintf(stderr, "%s\n", text);
}

static void show(int host, bool is_stderr, const char *line, size_t length, void *user)
{
    (void)host, (void)user; /* each line begins with its rank */
    fprintf(is_stderr ? stderr : stdout, "%.*s\n", (int)length, line);
}

int main(int argc, char **argv)
{
    const char *const who[] = {"sh", "-c", "echo rank $RANK of $WORLD_SIZE", NULL};
    const char *const *command = argc > 2 ? (const char *const *)&argv[2] : who;
    tr_cluster *cluster = tr_cluster_open(argc > 2 ? argv[1] : NULL, .slots = argc > 2 ? 0 : 2);
    TR_CHECK(tr_status_of(cluster));
    TR_CHECK(tr_cluster_check(cluster, command[0], say, NULL));

    tr_launch_report report;
    tr_status status = tr_cluster_run(cluster, command, .output = show, .pass_signals = true, .report = &report);
    if (status == TR_OK) return 0;
    fprintf(stderr, "%s\n", tr_error_message());
    return status == TR_INTERRUPTED ? report.exit_code : 1;
}
