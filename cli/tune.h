/* The parts of `trireme bench tune` that only calculate. */
#ifndef TRIREME_CLI_TUNE_H
#define TRIREME_CLI_TUNE_H

#include <trireme/tools.h>

#include <stdio.h>

/* What a schedule can be. */
enum { TR__TUNE_ALGORITHMS = 5 };
extern const char *const tr__tune_algorithms[TR__TUNE_ALGORITHMS];

/* The collectives among whose algorithms there is a choice. */
enum { TR__TUNE_KINDS = 7 };
extern const tr_collective_kind tr__tune_kinds[TR__TUNE_KINDS];
const char *tr__tune_kind_name(tr_collective_kind kind); /* "all_reduce" */

/* How long a collective takes from its call until all ranks are done. */
typedef struct tr__time {
    tr_collective_kind kind;
    int algorithm; /* of tr__tune_algorithms */
    int64_t bytes; /* that a rank gives */
    double measured_us, predicted_us;
} tr__time;

typedef struct tr__times {
    int ranks, count;
    tr__time *list; /* by kind, then by size, then by algorithm */
} tr__times;

/* Is there such an algorithm? */
bool tr__tune_exists(tr_collective_kind kind, int algorithm);
/* The constants with which tr_predict() comes closest to what was measured, in ratios; sets all predicted_us. */
tr_status tr__tune_fit(tr__times *times, tr_network *network);
/* The rows of the table: what was measured chooses for that number of ranks, what is predicted for others. */
tr_status tr__tune_write(const tr__times *times, const tr_network *network, FILE *file);

/* How far off predictions are, as ratios of 1 and more, whichever of the two is larger; and how much longer than the
 * fastest those algorithms take that the predictions choose, on average and at worst. */
typedef struct tr__tune_error {
    double median, ninth, worst; /* ninth: nine of ten are better */
    int worst_at;                /* of the list */
    double chosen_mean, chosen_worst;
} tr__tune_error;
tr_status tr__tune_judge(const tr__times *times, tr__tune_error *error);

#endif
