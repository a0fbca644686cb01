#include "comm/rendezvous.h"

#include "base/clock.h"
#include "base/object.h"
#include "comm/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KEY = 256, WITHDRAW_MS = 1000 };

tr_status tr__random_text(char *text, size_t bytes)
{
    unsigned char random[64];
    if (bytes / 2 > sizeof random) return tr__fail(TR_INVALID, "%zu random digits are too many", bytes - 1);
    if (getrandom(random, bytes / 2, 0) != (ssize_t)(bytes / 2))
        return tr__fail(TR_IO, "no random numbers from the kernel");
    for (size_t i = 0; i + 1 < bytes; i++) text[i] = "0123456789abcdef"[random[i / 2] >> (i % 2 * 4) & 15];
    text[bytes - 1] = 0;
    return TR_OK;
}

/* ---- Cards ------------------------------------------------------------------------------------------------------- */

static unsigned long namespace_of(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 ? (unsigned long)s.st_ino : 0;
}

/* Two processes share memory when they run on one kernel and see one namespace of sockets. */
static void machine_text(char *text, size_t size)
{
    char boot[40] = "unknown";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (fscanf(file, "%39s", boot) != 1) strcpy(boot, "unknown");
        fclose(file);
    }
    snprintf(text, size, "%s/%lu", boot, namespace_of("/proc/self/ns/net"));
}

void tr__card_here(const tr__member *member, tr__card *card)
{
    *card = (tr__card){.rank = member->rank, .world_size = member->world_size, .pid = (long)getpid()};
    card->pid_space = namespace_of("/proc/self/ns/pid");
    if (gethostname(card->host, sizeof card->host - 1) != 0 || !card->host[0]) strcpy(card->host, "unknown");
    machine_text(card->machine, sizeof card->machine);
}

#define CARD_FORMAT(host, machine, address, cookie, tcp_address, tcp_cookie, table)                                                 \
    "trireme-card 3 rank %d of %d pid %ld in %lu host " host " machine " machine " address " address " cookie " cookie     \
    " tcp " tcp_address " cookie " tcp_cookie " table " table

tr_status tr__card_read(const char *text, tr__card *card)
{
    *card = (tr__card){0};
    int fields = sscanf(text, CARD_FORMAT("%64s", "%128s", "%108s", "%32s", "%78s", "%32s", "%" SCNx64), &card->rank,
        &card->world_size, &card->pid, &card->pid_space, card->host, card->machine, card->address, card->cookie,
        card->tcp_address, card->tcp_cookie, &card->table);
    if (fields != 11 || strlen(card->cookie) != TR__COOKIE_TEXT - 1)
        return tr__fail(TR_FORMAT, "'%.40s' is no card of a rank", text);
    return TR_OK;
}

/* ---- Claims ------------------------------------------------------------------------------------------------------ */

static char *claim_key(const tr__rendezvous *r, char key[KEY])
{
    snprintf(key, KEY, "group/%s/rank/%d", r->member->group, r->member->rank);
    return key;
}

static char *card_key(const tr__rendezvous *r, int rank, char key[KEY])
{
    snprintf(key, KEY, "group/%s/card/%ld/%d", r->member->group, r->generation, rank);
    return key;
}

/* Tries to replace `expected` (NULL: nothing) by our claim. *held gets the claim that stands then; to be freed. */
static tr_status try_claim(tr__rendezvous *r, const tr__card *mine, const char *expected, char **held)
{
    char word[17], key[KEY];
    size_t bytes;
    TR__TRY(tr__random_text(word, sizeof word));
    snprintf(r->claim, sizeof r->claim, "%ld joined %s %ld %s", r->generation, word, mine->pid, mine->host);
    return tr_store_compare_set(r->member->store, claim_key(r, key), expected, expected ? strlen(expected) : 0,
                                r->claim, strlen(r->claim), (void **)held, &bytes);
}

/* Someone else's claim stands. Fails, or sets the generation that may follow it. */
static tr_status follow(tr__rendezvous *r, const char *held)
{
    char state[16], host[65] = "?";
    long generation, pid = 0;
    if (!held || sscanf(held, "%ld %15s %*s %ld %64s", &generation, state, &pid, host) < 2)
        return tr__fail(TR_FORMAT, "group '%s': damaged claim of rank %d in the store", r->member->group,
                        r->member->rank);
    if (strcmp(state, "left") != 0)
        return tr__fail(TR_STATE, "rank %d of group '%s' is taken: process %ld on host %s has joined as rank %d",
            r->member->rank, r->member->group, pid, host, r->member->rank);
    r->generation = generation + 1;
    return TR_OK;
}

tr_status tr__rendezvous_claim(tr__rendezvous *r, const tr__member *member, const tr__card *mine)
{
    *r = (tr__rendezvous){.member = member, .generation = 1};
    r->deadline = tr__now_ns() + (int64_t)member->timeout_ms * 1000000;
    char *expected = NULL;
    for (;;) {
        char *held = NULL;
        tr_status status = try_claim(r, mine, expected, &held);
        free(expected);
        bool ours = status == TR_OK && held && strcmp(held, r->claim) == 0;
        if (status == TR_OK && !ours) status = follow(r, held);
        expected = held;
        if (status == TR_OK && !ours) continue;
        free(expected);
        if (!ours) r->claim[0] = 0;
        return status;
    }
}

void tr__rendezvous_withdraw(tr__rendezvous *r, tr_status joined)
{
    if (!r->claim[0]) return;
    tr__error *latest = tr__error_take(); /* what fails here is nobody's concern */
    char key[KEY], left[32];
    snprintf(left, sizeof left, "%ld left", joined == TR_OK ? r->generation : r->generation - 1);
    void *held = NULL, *card = NULL;
    size_t bytes;
    /* The store may be gone, or stand still with the process that serves it. Then nobody can join there again, and
     * there is nothing to give back. The others find the same disagreement on our card that we found on theirs. */
    tr_status status = TR_OK;
    bool keep_card = joined == TR_OK || joined == TR_MISMATCH || joined == TR_UNSUPPORTED;
    if (!keep_card && r->card[0])
        status = tr__store_compare_set(r->member->store, card_key(r, r->member->rank, key), r->card, strlen(r->card),
                                       "", 0, WITHDRAW_MS, &card, &bytes);
    if (status == TR_OK)
        status = tr__store_compare_set(r->member->store, claim_key(r, key), r->claim, strlen(r->claim), left,
                                       strlen(left), WITHDRAW_MS, &held, &bytes);
    (void)status;
    free(held);
    free(card);
    r->claim[0] = 0;
    tr__fail_stored(latest);
    tr__error_unref(latest);
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

tr_status tr__rendezvous_publish(tr__rendezvous *r, const tr__card *mine)
{
    char key[KEY];
    int length = snprintf(r->card, sizeof r->card, CARD_FORMAT("%s", "%s", "%s", "%s", "%s", "%s", "%" PRIx64), mine->rank,
                          mine->world_size, mine->pid, mine->pid_space, mine->host, mine->machine, mine->address,
                          mine->cookie, mine->tcp_address, mine->tcp_cookie, mine->table);
    return tr_store_set(r->member->store, card_key(r, mine->rank, key), r->card, (size_t)length);
}

/* Waits for the text of a rank's card, to be freed. An empty one was taken down after a join that failed: another will
 * follow. */
static tr_status get_card(tr__rendezvous *r, int rank, int64_t deadline, char **text)
{
    char key[KEY];
    for (;;) {
        void *card = NULL;
        size_t bytes = 0;
        int64_t left = (deadline - tr__now_ns()) / 1000000;
        TR__TRY(tr__store_get(r->member->store, card_key(r, rank, key), left > 0 ? (int)left : 0, &card, &bytes));
        if (bytes > 0) {
            *text = card;
            return TR_OK;
        }
        free(card);
        if (left <= 0) return TR_TIMEOUT; /* the caller says who is missing */
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Has the rank come, even if it has given up meanwhile? */
static bool has_come(tr__rendezvous *r, int rank)
{
    char key[KEY];
    return tr__store_get(r->member->store, card_key(r, rank, key), 0, NULL, NULL) == TR_OK;
}

/* "rank 2", or "ranks 2, 5 and 7 more": those that have not come, `late` at least. */
static void missing_text(tr__rendezvous *r, int late, char *text, size_t size)
{
    enum { NAMED = 8 };
    int missing = 0;
    size_t used = 0;
    char list[NAMED * 12] = "";
    for (int rank = 0; rank < r->member->world_size; rank++) {
        if (rank == r->member->rank || (rank != late && has_come(r, rank))) continue;
        if (missing++ < NAMED)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", rank);
    }
    snprintf(text, size, "%s %s", missing == 1 ? "rank" : "ranks", list);
    used = strlen(text);
    if (missing > NAMED) snprintf(text + used, size - used, " and %d more", missing - NAMED);
}

static tr_status check_card(const tr__rendezvous *r, int rank, const tr__card *card)
{
    if (card->rank != rank)
        return tr__fail(TR_FORMAT, "group '%s': the card of rank %d says rank %d", r->member->group, rank, card->rank);
    if (card->world_size != r->member->world_size)
        return tr__fail(TR_MISMATCH, "group '%s': rank %d joins with a world size of %d, rank %d with %d",
                        r->member->group, r->member->rank, r->member->world_size, rank, card->world_size);
    return TR_OK;
}

tr_status tr__rendezvous_read(tr__rendezvous *r, int rank, tr__card *card)
{
    char *text, missing[160];
    tr__recorder_waits_for(r->member->recorder, &rank, 1);
    tr_status status = get_card(r, rank, r->deadline, &text);
    if (status == TR_TIMEOUT) {
        missing_text(r, rank, missing, sizeof missing);
        return tr__fail(TR_TIMEOUT, "group '%s': of %d ranks, %s did not join within %g s", r->member->group,
            r->member->world_size, missing, r->member->timeout_ms / 1000.0);
    }
    if (status != TR_OK) return status;
    status = tr__card_read(text, card);
    if (status == TR_OK) status = check_card(r, rank, card);
    free(text);
    if (status == TR_OK) tr__recorder_peer(r->member->recorder, rank, card->pid, card->host);
    return status;
}
