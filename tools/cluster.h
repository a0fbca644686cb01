/*
 * Machines that are reached by ssh, and the jobs on them.
 *
 *   cluster.c        the hosts, by their file
 *   cluster_ssh.c    commands for a host
 *   cluster_check.c  can they take part?
 *   cluster_run.c    a job: a launcher on each host, all of them children of this process
 *   cluster_job.c    what other processes can know of a job, and do to it
 */
#ifndef TR_TOOLS_CLUSTER_H
#define TR_TOOLS_CLUSTER_H

#include "common.h"

#include <limits.h>
#include <stdio.h>

struct tr_cluster {
    tr_object object;
    tr_cluster_host *hosts; /* [count] */
    int count;
    char *ssh, *command;
    char state[PATH_MAX];
};

/* The lines of a hosts file; name is for messages. The hosts are to be freed with tr__cluster_hosts_free(). */
tr_status tr__cluster_hosts_read(FILE *file, const char *name, tr_cluster_host **hosts, int *count);
void tr__cluster_hosts_free(tr_cluster_host *hosts, int count);

/* TR_INVALID for NULL, which function got; or the cluster's own error. */
tr_status tr__cluster_there(const tr_cluster *cluster, const char *function);
bool tr__host_is_local(const tr_cluster_host *host);

/* Words of a command in one string. Overflow is remembered and makes tr__text_status() fail. */
typedef struct tr__text {
    char *at;
    size_t used, bytes;
    bool full;
} tr__text;
void tr__text_add(tr__text *text, const char *format, ...) TR_PRINTF(2, 3);
/* A blank and the word, in quotes for a shell. */
void tr__text_quote(tr__text *text, const char *word);
tr_status tr__text_status(const tr__text *text);

enum { TR__SSH_WORDS = 32 };
/* argv of a process that runs a shell's command on a host. words holds what ssh is made of, and is to be freed. */
tr_status tr__ssh_command(const tr_cluster *cluster, const tr_cluster_host *host, const char *command,
    const char *argv[TR__SSH_WORDS], char **words);
/* What ssh's complaint means to a person who cannot be asked: what to do about it. "" when that is not known. */
const char *tr__ssh_advice(const char *complaint);

/* ---- The state folder: FOLDER/JOB/{job,log,end} ---- */

typedef struct tr__job_files {
    char folder[PATH_MAX];
    FILE *log;
} tr__job_files;
tr_status tr__job_begin(const tr_cluster *cluster, const char *name, int ranks, const char *const *argv, tr__job_files *files);
void tr__job_end(tr__job_files *files, const char *text);

#endif
