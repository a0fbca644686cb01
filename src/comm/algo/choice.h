/*
 * Which algorithm for which call: a table of rows, of which the first that fits counts. As text, a row is
 *
 *     all_reduce ranks 2-16 bytes 0-1M direct
 *
 * with the bytes that one rank gives (of all_gather_v: on average), suffixes K, M and G for powers of 1,024, and nothing
 * behind the dash for "and more". Rows end with a line or a semicolon. All ranks of a group need the same table.
 */
#ifndef TR_COMM_ALGO_CHOICE_H
#define TR_COMM_ALGO_CHOICE_H

#include "comm/algo/schedule.h"

enum { TR__CHOICES_MOST = 96, TR__CHOICES_TEXT = 8192 };

typedef struct tr__choice {
    tr_collective_kind kind;
    tr__algorithm algorithm;
    int ranks_from, ranks_to;
    int64_t bytes_from, bytes_to; /* both included */
} tr__choice;

typedef struct tr__choice_table {
    tr__choice rows[TR__CHOICES_MOST];
    int count;
} tr__choice_table;

/* The built-in table, behind the rows of `first` (NULL: none). */
tr_status tr__choice_defaults(tr__choice_table *table, const char *first);
tr__algorithm tr__choose(const tr__choice_table *table, tr_collective_kind kind, int world_size, int64_t bytes);
/* The table as text. Returns text. */
char *tr__choice_text(const tr__choice_table *table, char text[TR__CHOICES_TEXT]);

#endif
