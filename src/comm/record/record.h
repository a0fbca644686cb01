/*
 * Reading flight records (recorder.h) of any process of this user, whatever state it is in, and telling people what is in
 * them.
 */
#ifndef TR_COMM_RECORD_RECORD_H
#define TR_COMM_RECORD_RECORD_H

#include "comm/collective.h"
#include "comm/record/ranks_text.h"
#include "comm/record/recorder.h"

#include <stdio.h>
#include <sys/types.h>

/* What /proc says of a process. */
typedef struct tr__process {
    char state;     /* 'R' running, 'S' and 'D' asleep, 'T' and 't' stopped; 'X': there is none, or it is dead */
    long parent;
    uint64_t start; /* in the kernel's ticks since boot: tells it from an earlier process of this number */
    bool exiting;   /* it runs no more, though it may have to be cleared away or to be reaped yet, and */
    int status;     /* this is what waitpid() says of it */
} tr__process;

tr__process tr__process_of(long pid);

typedef struct tr__record_call {
    uint64_t id;
    tr__signature signature;
    tr_status status;
    int64_t posted, started, ended; /* as in tr__record_entry */
} tr__record_call;

/* A copy of a record. Everything in it has been checked: texts end, numbers are in their ranges. */
typedef struct tr__record {
    char job[TR__RECORD_NAME], host[TR__RECORD_NAME], group[TR__RECORD_NAME], backend[16];
    char failure[TR__RECORD_FAILURE]; /* empty: none */
    int64_t failed;
    int pid, parent, rank, world_size;
    tr__process process;
    unsigned long inode;    /* of the memfd, and where it lies there, for the reader; */
    size_t offset;
    bool rpc;               /* the group is an RPC agent's */
    bool owned;             /* has it found the process that writes it? */
    tr__record_state state;
    int64_t monotonic, realtime;
    int waits[TR__RECORD_WAITS], waits_count, waits_total; /* named, and all */
    int64_t waits_since;
    tr__held held;          /* bytes 0: no send is held up */
    tr__record_call *calls; /* [call_count], oldest first */
    int call_count;
    struct {
        int pid;            /* 0: not known */
        char host[60];
    } *peers;               /* [world_size] */
} tr__record;

typedef struct tr__records {
    tr__record *list;
    int count;
    size_t room;
} tr__records;

/* A copy of the record that lies in memory; anything else is refused. To be freed as those of a list. */
tr_status tr__record_of(const void *memory, size_t bytes, tr__record *record);
/* All records of this user's processes on this host, or of one process (0: all); sorted by job, group and rank. What
 * cannot be read is left out. */
tr_status tr__records_read(pid_t pid, tr__records *records);
void tr__records_free(tr__records *records);
/* What tr_job_explain() says of them. */
tr_status tr__records_explain(const tr__records *records, const char *job, char **text);
/* The culprits in the job of this name of waits under way that began later than `after` and by `until`, two moments
 * of tr__now_ns(). *text gets a line for each such rank, and is to be freed: "group 'world': rank 2 (pid 4242, stopped) is
 * what ranks 0 and 1 wait for: it has not entered all_reduce #18 (…) (for 12.3 s)\n". */
tr_status tr__records_stalls(const tr__records *records, const char *job, int64_t after, int64_t until, char **text);

/* The call that has run longest; a started collective comes before sends and receives, and a wait for nobody in particular comes
 * last. NULL when none is under way. */
const tr__record_call *tr__record_running(const tr__record *record);
/* The call that ended last; NULL: none has. */
const tr__record_call *tr__record_last(const tr__record *record);
/* "group 'world'", "rpc of 'world'". */
enum { TR__GROUP_TEXT = TR__RECORD_NAME + 16 };
char *tr__record_group(const tr__record *record, char text[TR__GROUP_TEXT]);
/* "0.25 s", "12.3 s", "7 min" between two moments. */
enum { TR__TIME_TEXT = 24 };
char *tr__time_text(int64_t ns, char text[TR__TIME_TEXT]);

/* Writes JOB-rankR-GROUP.txt and .trace.json to a folder, which is made when it is missing: every record of this
 * process. Leaves this thread's latest failure as it is; what fails here is told to the log function. */
void tr__record_dump(const char *folder, const tr__record_header *failed);
/* The same as streams. */
void tr__record_write_text(FILE *file, const tr__record *record, int64_t now);
/* What its rank is at: "in all_reduce #18 (…) for 12.3 s". */
void tr__record_write_state(FILE *file, const tr__record *record, int64_t now);
void tr__record_write_trace(FILE *file, const tr__records *records, int64_t now);

#endif
