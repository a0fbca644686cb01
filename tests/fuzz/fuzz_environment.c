/* Where a process stands by its environment: lines of NAME=value, of the launchers that MPI has no part in. */
/* fuzz: 200000, soak: 2000000 */
#include "fuzz.h"

#include "base/launcher.h"
#include "comm/group/environment.h"

static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TRIREME_STORE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID", "SLURM_STEP_ID"};
enum { NAMES = sizeof names / sizeof *names };

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static const char *const texts[] = {
        "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=10.0.0.1\nMASTER_PORT=29500\nTRIREME_STORE=1",
        "SLURM_PROCID=3\nSLURM_STEP_NUM_TASKS=8\nSLURM_LOCALID=1\nSLURM_STEP_NUM_NODES=2\n"
        "SLURM_STEP_NODELIST=node[03-07,9].x,other\nSLURM_JOB_ID=4294967295\nSLURM_STEP_ID=7",
    };
    const char *text = texts[number % 2];
    memcpy(bytes, text, strlen(text));
    return strlen(text);
}

static void set_one(char *line)
{
    char *value = strchr(line, '=');
    if (!value) return;
    *value++ = 0;
    for (int i = 0; i < NAMES; i++)
        if (strcmp(line, names[i]) == 0) setenv(line, value, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char *text = malloc(count + 1), *rest = text;
    FUZZ_CHECK(text);
    memcpy(text, bytes, count);
    text[count] = 0;
    for (int i = 0; i < NAMES; i++) unsetenv(names[i]);
    for (char *line; (line = strsep(&rest, "\n"));) set_one(line);
    tr__place p = {.world_size = 1, .local_rank = -1};
    if (tr__environment_place(false, 1000, &p) == TR_OK) {
        FUZZ_CHECK(p.world_size >= 1 && p.rank >= 0 && p.rank < p.world_size && p.local_rank < p.world_size);
        FUZZ_CHECK(strlen(p.host) < sizeof p.host && p.port >= 0 && p.port <= TR__PORT_MAX);
        if (p.world_size > 1) FUZZ_CHECK(p.port > 0);
    }
    free(text);
    return 0;
}
