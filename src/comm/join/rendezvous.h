/*
 * How ranks find each other: each registers its number in the store, publishes its endpoint record, which says where it can be
 * reached, and reads the records of the others. Below "group/NAME/":
 *
 *   rank/3        who holds rank 3: the generation, "joined" or "left", a random word, process and host
 *   endpoint/1/3  rank 3's endpoint record in generation 1
 *   died/1        the rank and the cookie of one that died while the others were meeting
 *   late/1        the same of one that somebody has waited for in vain
 *   late/1/3      of a meeting that is chained: whom rank 3 has waited for in vain
 *   used/1        that all ranks were connected, or one has told of another that died
 *   waits/1/3     over MPI and NCCL: the number of the collective in which rank 3 waits for long
 *
 * Generations count how often the ranks have met: a group that was left can be joined again on the same store, and nobody
 * mistakes an old record for a new one. A rank joins in the first generation that is not used, from the one on that it joined
 * in before. A generation is marked as used when all are connected, before anybody knows that: between hosts by rank 0, on one
 * host by each before it says that it is connected with all. So where a join succeeds on some ranks only, those that failed go on
 * with the next generation, too, whenever they look. A try that came to less, such as one that waited in vain, leaves the
 * generation to the next try. Who waits in one for a record that is not there, and finds it used, goes on to the next: so has
 * the other rank, or it will.
 */
#ifndef TR_COMM_JOIN_RENDEZVOUS_H
#define TR_COMM_JOIN_RENDEZVOUS_H

#include "comm/join/member.h"
#include "net/endpoint.h"

typedef struct tr__endpoint_record {
    char version[24];             /* of the rank's library */
    int rank, world_size;
    long pid;
    unsigned long pid_space;      /* where that number means something: the inode of the process namespace */
    char host[65];                /* for people */
    char machine[129];            /* ranks with the same one can share memory: boot id and network namespace */
    char address[109];            /* where the rank listens for ranks of its machine */
    char cookie[TR__COOKIE_TEXT]; /* what who connects must bring; travels over the store only */
    char tcp_address[79];         /* the same for ranks of other machines; "-": nowhere */
    char tcp_cookie[TR__COOKIE_TEXT];
    uint64_t table;               /* tr__choice_digest() of what chooses its algorithms there */
    int tls;                      /* 1: connections to ranks of other machines are to be encrypted */
} tr__endpoint_record;

typedef struct tr__rendezvous {
    const tr__member *member;
    int64_t deadline; /* by tr__now_ns() */
    char registration[320], record[768]; /* as in the store; empty: none */
    long generation;
    bool used;        /* tr__rendezvous_check_peers() has found it to be */
    int64_t checked;  /* when we last asked whether a rank has died */
    int64_t silent_until; /* the store is not asked before, as it did not answer */
    int64_t first_end;    /* when the first rank hung up on us; 0: none has */
    bool chained;     /* ranks meet in stages or with neighbours only, so the one that is waited for may itself wait for another */
    int said;         /* the rank that others have been told this one waits for; -1: none */
    int dead, late;   /* a rank that we know to have died, or whom we wait for until the deadline; -1: none */
} tr__rendezvous;

/* "group/NAME/WHAT/1/3": of this generation, and of a rank in it (-1: of none). Returns key. */
enum { TR__RENDEZVOUS_KEY = 256 };
char *tr__rendezvous_key(const tr__rendezvous *r, const char *what, int rank, char key[TR__RENDEZVOUS_KEY]);

/* Fills in what is known of this process: all but address and cookie. */
void tr__endpoint_record_here(const tr__member *member, tr__endpoint_record *record);

/* Does its pid mean the same to us? */
bool tr__endpoint_record_visible(const tr__endpoint_record *record, const tr__endpoint_record *mine);

/* From its text in the store. */
tr_status tr__endpoint_record_read(const char *text, tr__endpoint_record *record);

/* Takes the member's rank; fails when another process holds it, unless that can be seen from here to have ended. */
tr_status tr__rendezvous_register(tr__rendezvous *r, const tr__member *member, const tr__endpoint_record *mine);
tr_status tr__rendezvous_publish(tr__rendezvous *r, const tr__endpoint_record *mine);
/* Waits for the records of all ranks, ours among them; at the deadline the failure names those that are missing. */
tr_status tr__rendezvous_read_all(tr__rendezvous *r, tr__endpoint_record *records);
/* When that has failed with .used: withdraws our record, and registers the rank in the next generation, to publish and read again.
 * What listens for this one is to be closed before. */
tr_status tr__rendezvous_go_on(tr__rendezvous *r, const tr__endpoint_record *mine);
/* To be called when all ranks are connected, before anybody is told so: marks the generation as used. */
tr_status tr__rendezvous_use(tr__rendezvous *r);
/* To be called while ranks are waited for, with the first, and with -1 when all have come. From half of the time on the others are
 * told: those that began to wait earlier give up earlier than this one, and ask whom it waits for. */
void tr__rendezvous_waits_for(tr__rendezvous *r, const tr__endpoint_record *records, int rank);
/* The records of so many ranks, from the first on, into their places among those of all. */
tr_status tr__rendezvous_read(tr__rendezvous *r, int first, int count, tr__endpoint_record *records);
/* Fails when it can be seen from here that the rank died: not of one that gave up or left, and ended. */
tr_status tr__rendezvous_check(tr__rendezvous *r, const tr__endpoint_record *records, int rank);
/* What is left for those who are connected with all and wait for them to be: a moment more than others have, who know whom they
 * have not reached and are to say so first. */
int tr__rendezvous_rest_ms(const tr__rendezvous *r);
/* While we wait for others: fails when one of the group is said to have died. The store is asked now and then. */
tr_status tr__rendezvous_check_peers(tr__rendezvous *r);
/* A rank has closed its connection to us, at `since` by tr__now_ns() or before. Fails when it has died, or when it has told
 * before it went who has; TR_OK: it may have given up, or that is yet to be seen. */
tr_status tr__rendezvous_hung_up(tr__rendezvous *r, const tr__endpoint_record *records, int rank, int64_t since);
/* The same, of one that has hung up just now, after a moment in which that is seen. */
tr_status tr__rendezvous_await_reason(tr__rendezvous *r, const tr__endpoint_record *records, int rank);
/* A join has failed with `status` and this thread's latest failure, which is about the rank suspect (-1: none that hung up):
 * looks for the reason behind it, and lets those know who cannot see it for themselves; on other hosts they would wait in vain,
 * or find that those have gone who knew. Before our own connections close, which others may be looking at. Returns the status of
 * what is then the latest failure. */
tr_status tr__rendezvous_explain(tr__rendezvous *r, const tr__endpoint_record *records, int suspect, tr_status status);
/* The join has failed, and not because of us: withdraws our record, before our connections close, so that nobody takes us for
 * dead. */
void tr__rendezvous_give_up(tr__rendezvous *r, tr_status why);
/* Gives the rank's number back. */
void tr__rendezvous_withdraw(tr__rendezvous *r);

#endif
