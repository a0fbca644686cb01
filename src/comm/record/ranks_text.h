/* Ranks in messages. */
#ifndef TR_COMM_RECORD_RANKS_TEXT_H
#define TR_COMM_RECORD_RANKS_TEXT_H

/* "rank 2", "ranks 0, 1 and 3", "ranks 0, 1, 2 and 12 more". */
enum { TR__RANKS_TEXT = 160 };
char *tr__ranks_text(const int *ranks, int named, int total, char text[TR__RANKS_TEXT]);

#endif
