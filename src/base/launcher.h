/* Which launcher started this process, by the variables that it left in the environment. */
#ifndef TR_BASE_LAUNCHER_H
#define TR_BASE_LAUNCHER_H

/* The names of a launcher's variables. */
typedef struct tr__launcher {
    const char *name;
    const char *rank, *world_size;
    const char *local_rank, *local_world_size; /* the latter may be NULL: it gives none */
} tr__launcher;

extern const tr__launcher tr__torchrun, tr__open_mpi, tr__mpich, tr__slurm;

/* NULL: none, so this process is alone. torchrun's variables (Trireme's launcher sets them too) come first: whoever sets
 * them inside a batch job means them. */
const tr__launcher *tr__launcher_here(void);

#endif
