/*
 * A worker process: makes batches for the thread of a loader that drives it. The process is started from the program's
 * executable (base/process_call.h), makes the dataset again, and waits at a socket. A request names the samples; the batch comes
 * in memory that both map, of a size that is known beforehand for samples that are laid out alike and grows otherwise;
 * the answer says where in it what lies, what was skipped, or how it failed. A process that dies is an end of file.
 */
#ifndef TR_DATA_REMOTE_H
#define TR_DATA_REMOTE_H

#include "data/batch.h"

#include "base/process_call.h"

typedef struct tr__remote {
    bool running;
    tr__call call;
    pid_t pid;
    int socket, memory_fd, pidfd; /* pidfd -1: this kernel has none */
    char *memory; /* the samples' numbers, and behind them the batch */
    size_t bytes;
} tr__remote;

/* Whether another process can make a recipe's batches. */
tr_status tr__remote_check(const tr__recipe *recipe);

/* As tr__batch_make(), by the remote's process, which is started when it does not run. most: samples in the largest
 * batch. When wake becomes readable it is given up: TR_CANCELLED. The thread that starts a process also ends it. */
tr_status tr__remote_make(tr__remote *remote, const tr__recipe *recipe, int64_t most, int wake, tr__batch_result *batch);
/* Asks the process to end, kills it when it does not within a second, and frees all. */
void tr__remote_end(tr__remote *remote);

#endif
