/*
 * The flight recorder: each group of several ranks keeps its last calls in a memfd named "trireme-flight", mapped into
 * its process, beside those of the group that it was made within. Whoever runs as the same user can read it through /proc, also when the process is stopped or hangs:
 * `trireme why` does (record.h, explain.c). When a collective fails, the record is written to files (record_text.c).
 *
 * Writing takes no lock and no system call: relaxed and release stores, and the clock. All functions take NULL, the
 * recorder of a group that has none, and do nothing; so they do in a forked child, whose parent's record it is.
 */
#ifndef TR_COMM_RECORD_RECORDER_H
#define TR_COMM_RECORD_RECORDER_H

#include "comm/collective.h"

#define TR__RECORD_MEMFD "trireme-flight"
#define TR__RECORD_MAGIC "TRFLIGHT"

enum {
    TR__RECORD_VERSION = 2,
    TR__RECORD_ENTRIES = 256,
    TR__RECORD_WAITS = 32,   /* ranks that a rank is said to wait for, at most */
    TR__RECORD_FILE = 56,    /* the end of the caller's path */
    TR__RECORD_NAME = 64,
    TR__RECORD_FAILURE = 1024,
};

/* ---- Layout: records begin at pages; a header, entry_count entries of entry_bytes, world_size peers of peer_bytes ----- */

/* A call. Which one it is, its mark says: 2 * id + 2, or 2 * id + 1 while it is being written; ids count from 0. A
 * reader that sees the mark change has read parts of two calls. */
typedef struct tr__record_entry {
    _Atomic uint64_t mark;
    _Atomic uint64_t sequence;               /* in the group's order; 0: none, or not started */
    _Atomic int64_t posted, started, ended;  /* on the monotonic clock, ns; 0: not yet */
    tr__call_words call;
    _Atomic int32_t status;                  /* when it has ended */
    uint32_t reserved;
    _Atomic uint64_t file[TR__RECORD_FILE / 8];
} tr__record_entry;

/* Another rank of the group; the process id, written last, is 0 as long as nothing is known. */
typedef struct tr__record_peer {
    _Atomic int32_t pid;
    char host[60];
} tr__record_peer;

typedef enum tr__record_state { TR__RECORD_JOINING, TR__RECORD_JOINED, TR__RECORD_FAILED } tr__record_state;

typedef struct tr__record_header {
    char magic[8];
    uint32_t version, header_bytes, entry_bytes, entry_count, peer_bytes;
    int32_t pid, parent;                     /* parent: of the process, when it joined */
    int32_t rank, world_size;
    _Atomic uint32_t rpc;                    /* not 0: remote procedure calls are what the group is for */
    uint64_t pid_start;                      /* as in /proc/PID/stat: ids are used again */
    int64_t monotonic, realtime;             /* the same moment on both clocks, ns */
    char job[TR__RECORD_NAME], host[TR__RECORD_NAME], group[TR__RECORD_NAME], backend[16];
    _Alignas(64) _Atomic uint64_t next;      /* the id that comes next */
    _Atomic uint32_t state;
    /* The rank that does not receive what it was sent, and so holds a send up; valid while there are bytes. */
    _Atomic int32_t held_rank, held_tag;
    _Atomic uint64_t held_bytes;
    /* Whom the call under way waits for: the first of them, and how many. The mark is odd while this is written. */
    _Alignas(64) _Atomic uint32_t waits_mark;
    _Atomic int32_t waits_total;
    _Atomic int64_t waits_since;
    _Atomic int32_t waits[TR__RECORD_WAITS];
    _Atomic int64_t failed;                  /* when; the text is complete then */
    _Atomic uint64_t failure[TR__RECORD_FAILURE / 8];
} tr__record_header;

_Static_assert(sizeof(tr__record_entry) == 128, "the layout is read by other processes");
_Static_assert(sizeof(tr__record_peer) == 64, "the layout is read by other processes");
_Static_assert(sizeof(tr__record_header) == 1600, "the layout is read by other processes");

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

typedef struct tr__recorder tr__recorder;

typedef struct tr__recorder_options {
    const char *job;    /* NULL: unknown */
    const char *group, *backend;
    int rank, world_size;
    const char *folder; /* for the files when a collective fails; NULL: none are written */
    tr__recorder *beside; /* that of a group which this one is made within; NULL: none */
} tr__recorder_options;

/* NULL when the system refuses: the group works without. */
tr__recorder *tr__recorder_open(const tr__recorder_options *options);
void tr__recorder_close(tr__recorder *r);
/* The ranks have found each other; until then the record says that this one is joining. */
void tr__recorder_joined(tr__recorder *r);
/* Where another rank runs; host NULL: on ours. */
void tr__recorder_peer(tr__recorder *r, int rank, long pid, const char *host);

/* A call is posted, starts, ends; the record is what post or start gave. A call that was not posted, or found no room,
 * has record 0. Calls that are under way are never overwritten. Any thread; an end counts once. */
uint64_t tr__recorder_post(tr__recorder *r, const tr_collective *c);
uint64_t tr__recorder_start(tr__recorder *r, uint64_t record, const tr_collective *c, uint64_t sequence);
/* With the thread's latest failure when status is not TR_OK; the group's first one writes the files. */
void tr__recorder_end(tr__recorder *r, uint64_t record, tr_status status);

/* The group is for remote procedure calls, and whoever reads the record says so. */
void tr__recorder_is_rpc(tr__recorder *r);
/* A thread is about to sleep until another rank has done what the text says ("rpc head on \"back\""); it is a call under
 * way until tr__recorder_end(). rank: that one, or -1. through_others: it needs others, too, so a rank that is stopped is
 * what it waits for. */
uint64_t tr__recorder_wait(tr__recorder *r, int rank, bool through_others, const char *text);
/* The bytes of a text, at most so many, that end no UTF-8 character in its middle. */
size_t tr__recorder_fit(const char *text, size_t most);

/* A peer that does not receive what it was sent: so many bytes lie there unasked, the first of this tag (-1: not known). */
typedef struct tr__held {
    int rank, tag;
    uint64_t bytes;
} tr__held;
/* It holds a send up from now on; NULL: nobody does. One thread at a time. */
void tr__recorder_held(tr__recorder *r, const tr__held *held);
/* " to receive: 64 MiB lie there unasked, the first of tag 7"; nothing without bytes. */
enum { TR__HELD_TEXT = 96 };
char *tr__held_text(const tr__held *held, char text[TR__HELD_TEXT]);

/* The call under way (or the join) waits for these ranks from now on; of a count of 0, for none. One thread at a time. */
void tr__recorder_waits_for(tr__recorder *r, const int *ranks, int count);

#endif
