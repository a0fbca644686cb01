/* Trials of the simulator (fault.h), and what they are made of. */
#ifndef FAULT_TRIAL_H
#define FAULT_TRIAL_H

#include "fault.h"

#include <stdio.h>
#include <trireme/base.h>

enum { TEXT = 8192, LAYOUTS = 4 };

/* ---- attempt.c --------------------------------------------------------------------------------------------------- */

/* One run of the job in a folder of its own: DIR/disk is what it writes, DIR/tmp its TMPDIR, DIR/output what it said.
 */
typedef struct attempt {
    const char *dir;
    fault_page *page; /* what is to happen, and what has */
    int exit_code;    /* -1: a signal has ended the launcher */
    char output[1 << 16];
} attempt;

/* Maps DIR/page. */
fault_page *attempt_page(const char *dir);
/* Runs it until nothing of it is left; false with the reason when it hangs, or something stays behind. The calling
 * process becomes the parent of all that lose theirs. */
bool attempt_run(attempt *a, char wrong[TEXT]);

/* ---- compare.c --------------------------------------------------------------------------------------------------- */

/* Are the newest checkpoints of two trainings whole and the same, bit for bit: model, optimizer, and the metrics but
 * for times? And the files of metrics? */
bool compare_trainings(const char *folder, const char *expected, char wrong[TEXT]);

/* ---- trial.c ----------------------------------------------------------------------------------------------------- */

/* Of an undisturbed training on each layout of ranks: where it is, and how many calls it makes. */
typedef struct golden {
    char dir[PATH_MAX];
    call_counts counts[RANKS];
    int64_t reads; /* of one that goes on */
} golden;

extern const char *const layout_names[LAYOUTS];
bool golden_make(golden *g, int layout, const char *text, char wrong[TEXT]);
typedef struct trial_options {
    uint64_t seed;
    defect defect;
    FILE *told; /* gets each attempt, in words; or NULL */
} trial_options;
/* Runs the trial of a seed. False with what is wrong. */
bool trial_run(const trial_options *options, const golden goldens[LAYOUTS], const char *dir, char wrong[TEXT]);

/* Adds a line to a text. Returns false. */
bool object(char wrong[TEXT], const char *format, ...) TR_PRINTF(2, 3);

#endif
