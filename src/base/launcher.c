#include "base/launcher.h"

#include <stddef.h>
#include <stdlib.h>

const tr__launcher tr__torchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
const tr__launcher tr__open_mpi = {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
const tr__launcher tr__mpich = {"MPICH's mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
/* Only a step has SLURM_STEP_NUM_TASKS: the shell of a batch job has SLURM_NTASKS and SLURM_PROCID as well, and a
 * program that is started there without srun is alone. */
const tr__launcher tr__slurm = {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL};

/* mpirun may start its ranks through srun, whose variables then mean something else: it comes before srun. */
const tr__launcher *tr__launcher_here(void)
{
    if (getenv(tr__torchrun.rank) || getenv(tr__torchrun.world_size)) return &tr__torchrun;
    if (getenv(tr__open_mpi.world_size)) return &tr__open_mpi;
    if (getenv(tr__mpich.world_size)) return &tr__mpich;
    return getenv(tr__slurm.world_size) ? &tr__slurm : NULL;
}
