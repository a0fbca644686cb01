/*
 * Calls that are made in other processes: a function of this program or of a library that it has loaded, run in a process
 * that is started from this program's own executable. Nothing is forked that has computed: the child begins at main(), which
 * begins with TR_SPAWN_ENTRY (base.h), and that is where the call is made.
 *
 *     tr__call call;
 *     TR__TRY(tr__call_make(&call, work, &argument, sizeof argument, workers));
 *     for (int i = 0; i < workers; i++) status = tr__call_start(&call, i, keep, &pids[i]);   // work(i, argument, bytes) in each
 *     …waitpid(pids[i])…
 *     status = tr__call_result(&call, i);   // what work() returned, with its message
 *     tr__call_free(&call);
 *
 * The call lies in a memfd that the processes inherit: where the function is (which object, at which offset), the argument's
 * bytes, which each process gets a copy of its own of, and a place for each process's result. The environment variable
 * TRIREME_SPAWN says which descriptor and which process it is; the entry takes it out of the environment, so what the
 * function itself starts is not mistaken for a process of the call.
 *
 * Memory that the processes are to share goes by a descriptor of its own: .keep.
 */
#ifndef TR_BASE_PROCESS_CALL_H
#define TR_BASE_PROCESS_CALL_H

#include <trireme/base.h>

#include <sys/types.h>

enum { TR__CALL_VARIABLE = 48, TR__CALL_MESSAGE = 2000 };

/* How far a process has come. One that has ended is in the state in which it ended. */
typedef enum tr__call_progress {
    TR__CALL_OUTSIDE,  /* its main() has not come to TR_SPAWN_ENTRY */
    TR__CALL_RUNNING,  /* the function has not returned */
    TR__CALL_RETURNED
} tr__call_progress;

typedef struct tr__call {
    int fd;                       /* of the memfd; closes on exec, so whoever starts a process keeps it: .keep = fd */
    struct tr__call_shared *shared;
    size_t mapped;                /* bytes of shared */
} tr__call;

/* A call for so many processes. The argument is copied. Fails (TR_STATE) in a process that is itself of a call, but whose
 * main() does not begin with TR_SPAWN_ENTRY: it would start itself without end. On failure nothing needs freeing. */
tr_status tr__call_make(tr__call *call, tr_spawn_function function, const void *argument, size_t bytes, int processes);
void tr__call_free(tr__call *call);

/* The executable that its processes run. */
#define TR__CALL_PROGRAM "/proc/self/exe"
/* "TRIREME_SPAWN=…" for process `number`: for who starts the processes by other means than tr__call_start(). */
void tr__call_variable(const tr__call *call, int number, char text[TR__CALL_VARIABLE]);

/* Starts process `number` with this process's environment, descriptors 0, 1, 2 and process group. It ignores signals that
 * ask for an end (not_asked in base/process.h), and is killed when the calling thread ends. keep: two descriptors
 * more that it inherits, under the same numbers; 0: none. */
tr_status tr__call_start(const tr__call *call, int number, const int keep[2], pid_t *pid);

tr__call_progress tr__call_progress_of(const tr__call *call, int number);
/* Of a process that has ended: TR_OK, or the failure that the function returned, with its message; TR_CHILD when it ended
 * without returning. */
tr_status tr__call_result(const tr__call *call, int number);
/* When the function returned, by tr__now_ns(). */
int64_t tr__call_returned_ns(const tr__call *call, int number);

/* True while this process makes a call of another one. */
bool tr__call_inside(void);

#endif
