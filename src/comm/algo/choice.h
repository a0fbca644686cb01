/*
 * Which algorithm for which call: a table of rows, of which the first that fits counts. As text, a row is
 *
 *     all_reduce ranks 2-16 bytes 0-1M direct
 *
 * with the bytes that one rank gives (of all_gather_v: on average), suffixes K, M and G for powers of 1,024, and nothing
 * behind the dash for "and more". One more row says what the network is like, for predictions:
 *
 *     network latency_ns 20000 overhead_ns 2000 mbytes_per_s 1250 copy_mbytes_per_s 2500 fold_mbytes_per_s 10000
 *
 * in whole numbers, as the decimal point is a matter of locale. Rows end with a line or a semicolon; what follows a '#'
 * is a comment. All ranks of a group need the same table.
 */
#ifndef TR_COMM_ALGO_CHOICE_H
#define TR_COMM_ALGO_CHOICE_H

#include "comm/algo/schedule.h"

enum { TR__CHOICES_MOST = 320, TR__CHOICES_TEXT = (TR__CHOICES_MOST + 2) * 128 }; /* no row takes more than 128 bytes */

typedef struct tr__choice {
    tr_collective_kind kind;
    tr__algorithm algorithm;
    int ranks_from, ranks_to;
    int64_t bytes_from, bytes_to; /* both included */
} tr__choice;

/* X(name, least): what tools.h's tr_network says, in nanoseconds and millions of bytes per second. */
#define TR__CONSTANT_MAP(X)                                                                                          \
    X(latency_ns, 0) X(overhead_ns, 0) X(mbytes_per_s, 1) X(copy_mbytes_per_s, 0) X(fold_mbytes_per_s, 0)
typedef enum tr__constant {
#define TR__CONSTANT_NAME(name, least) TR__##name,
    TR__CONSTANT_MAP(TR__CONSTANT_NAME)
#undef TR__CONSTANT_NAME
    TR__CONSTANT_COUNT
} tr__constant;

typedef struct tr__choice_table {
    tr__choice rows[TR__CHOICES_MOST];
    int count;
    bool has_network;
    int64_t network[TR__CONSTANT_COUNT];
} tr__choice_table;

/* The built-in table, behind the rows of `first` (NULL: none). A row that an earlier one leaves nothing to is dropped, so
 * that a table which is printed and read again stays as it is. source: where the rows are from, for messages; NULL: not
 * from a file, so that no line is named. */
tr_status tr__choice_read(tr__choice_table *table, const char *first, const char *source);
/* Leaves the rows that count for a world size, with that size for their ranks. */
void tr__choice_keep(tr__choice_table *table, int world_size);
tr__algorithm tr__choose(const tr__choice_table *table, tr_collective_kind kind, int world_size, int64_t bytes);
/* The table as text. Returns text. */
char *tr__choice_text(const tr__choice_table *table, char text[TR__CHOICES_TEXT]);
/* A number that differs when the rows do. */
uint64_t tr__choice_digest(const tr__choice_table *table);

/* algorithms.c: the table as text, to be freed. given: rows, or "@FILE" with a file of rows; NULL: TRIREME_ALGORITHMS. *text is NULL
 * when nothing is given: the built-in table is enough. */
tr_status tr__algorithms_text(const char *given, char **text);

#endif
