/*
 * The ranks' output: pipes are read by the launcher's loop, cut into lines, and given to the program's function by a thread
 * of its own, which may block as long as it likes. What lies between the two is bounded: when it is full, pipes are no
 * longer read, they fill, and the ranks wait.
 */
#ifndef TR_LAUNCH_OUTPUT_H
#define TR_LAUNCH_OUTPUT_H

#include <trireme/launch.h>

#include <pthread.h>
#include <uv.h>

#define TR__LINE_BYTES (16 << 10)
#define TR__PREFIX_BYTES 32
#define TR__TAIL_BYTES 800

typedef struct tr__output tr__output;

/* One pipe of one rank, and what of it is not yet a line. */
typedef struct tr__stream {
    tr__output *output;
    int rank;
    bool is_stderr;
    bool open, ended, paused, skip_newline;
    int fd;
    uv_poll_t poll;
    char *buffer; /* [the longest line and its newline], holding begin to end */
    size_t begin, end;
} tr__stream;

/* The last lines of a rank, each with its newline. */
typedef struct tr__tail {
    size_t used;
    char text[TR__TAIL_BYTES];
} tr__tail;

/* Lines in a row: {rank, is_stderr, length, bytes}. */
typedef struct tr__batch {
    size_t used;
    char *data;
} tr__batch;

typedef struct tr__output_options {
    int first_rank, ranks;
    tr_launch_output function; /* or NULL */
    void *user;
    const char *log_dir;       /* or NULL */
    bool prefixed;             /* the lines are those of launchers, longer by their "[3] " */
    bool append;               /* to the files in log_dir, which are made anew otherwise */
} tr__output_options;

struct tr__output {
    tr__output_options options;
    int ranks;
    tr__stream *streams; /* [ranks][2] */
    tr__tail *tails;     /* [ranks] */
    int *logs;           /* [ranks], descriptors of their files; -1: none */
    bool draining;       /* nobody is left to write: what is there now is all */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t more;
    tr__batch filling, giving; /* the loop fills one while the thread gives the other to the program */
    bool full, stop;
    uv_async_t room; /* wakes the loop when there is room again */
};

/* Ranks are counted from 0 on this node here; the function is given their numbers in the job. On failure nothing needs
 * closing. The handles live in loop, which is run until they are closed. */
tr_status tr__output_open(tr__output *output, uv_loop_t *loop, const tr__output_options *options);
/* Opens the pipe of a rank; *write_end is for the rank, and the caller's to close. */
tr_status tr__output_add(tr__output *output, uv_loop_t *loop, int rank, bool is_stderr, int *write_end);
/* Says that no writer is left: streams end where there is nothing to read. */
void tr__output_drain(tr__output *output);
/* True when every stream has ended and its lines are on their way to the program. */
bool tr__output_idle(const tr__output *output);
/* Ends every stream, whatever is still in it; the loop then has only handles to close. */
void tr__output_end(tr__output *output);
/* Waits until the program has got every line, and frees everything. After tr__output_end() and the closing of the loop. */
void tr__output_free(tr__output *output);

/* If the rank has said something, appends heading and up to ten of its last lines to text, as many as fit. */
void tr__output_last_lines(const tr__output *output, int rank, const char *heading, char *text, size_t bytes);

#endif
