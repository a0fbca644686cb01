#include "comm/rendezvous.h"

#include "base/clock.h"
#include "base/object.h"
#include "comm/record.h"
#include "net/store/store.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    KEY = 256,
    WITHDRAW_MS = 1000,
    AT_ONCE = 4096, /* cards in one request: 3 MiB */
    LOOK_FIRST_MS = 100,
    LOOK_MOST_MS = 5000,
    HEED_MS = 250,
    LAST_WORD_MS = 500,
    LEAVE_MS = 250,   /* from a rank's hanging up to its having given its number back */
    SILENT_MS = 2000, /* that a store which did not answer is not asked again */
};

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

/* The format's number and the library's version come first in every format, so that any two libraries can tell that they differ. */
#define CARD_NUMBER "5"
#define CARD_FORMAT(version, host, machine, address, cookie, tcp_address, tcp_cookie, table)                            \
    "trireme-card " CARD_NUMBER " version " version " rank %d of %d pid %ld in %lu host " host " machine " machine        \
    " address " address " cookie " cookie " tcp " tcp_address " cookie " tcp_cookie " table " table " tls %d"

tr_status tr__card_read(const char *text, tr__card *card)
{
    *card = (tr__card){0};
    int fields = sscanf(text, CARD_FORMAT("%23s", "%64s", "%128s", "%108s", "%32s", "%78s", "%32s", "%" SCNx64),
        card->version, &card->rank, &card->world_size, &card->pid, &card->pid_space, card->host, card->machine,
        card->address, card->cookie, card->tcp_address, card->tcp_cookie, &card->table, &card->tls);
    if (fields != 13 || strlen(card->cookie) != TR__COOKIE_TEXT - 1)
        return tr__fail(TR_FORMAT, "'%.40s' is no card of a rank", text);
    return TR_OK;
}

bool tr__card_visible(const tr__card *card, const tr__card *mine)
{
    return card->pid_space == mine->pid_space && mine->pid_space && strcmp(card->machine, mine->machine) == 0;
}

/* Libraries of two versions lay out what they share in different ways: they part before they connect. */
static tr_status check_version(const tr__rendezvous *r, int rank, const char *text)
{
    char number[8] = "", version[24] = "of an earlier version";
    if (sscanf(text, "trireme-card %7s version %23s", number, version) < 1) return TR_OK; /* damaged: reading it says so */
    if (strcmp(number, CARD_NUMBER) == 0 && strcmp(version, tr_version()) == 0) return TR_OK;
    return tr__fail(TR_MISMATCH, "group '%s': rank %d runs Trireme %s, rank %d runs Trireme %s: all ranks of a job need the same "
        "version", r->member->group, r->member->rank, tr_version(), rank, version);
}

/* One that nobody has reaped yet still has its number. */
static bool has_ended(const tr__card *card, const tr__card *mine)
{
    if (!tr__card_visible(card, mine)) return false;
    if (kill((pid_t)card->pid, 0) != 0) return errno == ESRCH;
    return tr__process_of(card->pid).state == 'X' && tr__process_of(mine->pid).state != 'X';
}

/* ---- Claims ------------------------------------------------------------------------------------------------------ */

static char *claim_key(const tr__rendezvous *r, int rank, char key[KEY])
{
    snprintf(key, KEY, "group/%s/rank/%d", r->member->group, rank);
    return key;
}

static char *card_key(const tr__rendezvous *r, int rank, char key[KEY])
{
    snprintf(key, KEY, "group/%s/card/%ld/%d", r->member->group, r->generation, rank);
    return key;
}

static char *used_key(const tr__rendezvous *r, char key[KEY])
{
    snprintf(key, KEY, "group/%s/used/%ld", r->member->group, r->generation);
    return key;
}

static tr_status mark_used(tr__rendezvous *r, int timeout_ms)
{
    char key[KEY];
    void *held = NULL;
    size_t bytes;
    tr_status status = tr__store_compare_set(r->member->store, used_key(r, key), NULL, 0, "", 0, timeout_ms, &held, &bytes);
    free(held);
    return status;
}

tr_status tr__rendezvous_use(tr__rendezvous *r)
{
    return mark_used(r, tr__rendezvous_rest_ms(r));
}

/* Goes on to the first generation that is not used, from r->generation on. */
static tr_status skip_used(tr__rendezvous *r)
{
    for (char key[KEY];; r->generation++) {
        const char *asked = used_key(r, key);
        tr__store_value value;
        tr_status status = tr__store_gather(r->member->store, &asked, 1, 0, &value);
        if (status == TR_TIMEOUT) return TR_OK; /* it is not there */
        TR__TRY(status);
        free(value.data);
    }
}

/* Tries to replace `expected` (NULL: nothing) by our claim. *held gets the claim that stands then; to be freed. */
static tr_status try_claim(tr__rendezvous *r, const tr__card *mine, const char *expected, char **held)
{
    char word[17], key[KEY];
    size_t bytes;
    TR__TRY(tr__random_text(word, sizeof word));
    snprintf(r->claim, sizeof r->claim, "%ld joined %s %ld %s %lu %s", r->generation, word, mine->pid, mine->host,
        mine->pid_space, mine->machine);
    return tr_store_compare_set(r->member->store, claim_key(r, r->member->rank, key), expected, expected ? strlen(expected) : 0,
                                r->claim, strlen(r->claim), (void **)held, &bytes);
}

/* Someone else's claim stands. Fails, or sets the generation that may follow it: a process that can be seen to have ended without
 * giving its number back holds it no longer. */
static tr_status follow(tr__rendezvous *r, const tr__card *mine, const char *held)
{
    char state[16];
    tr__card holder = {.host = "?"};
    if (!held || sscanf(held, "%ld %15s %*s %ld %64s %lu %128s", &r->generation, state, &holder.pid, holder.host,
                     &holder.pid_space, holder.machine) < 2)
        return tr__fail(TR_FORMAT, "group '%s': damaged claim of rank %d in the store", r->member->group,
                        r->member->rank);
    bool left = strcmp(state, "left") == 0, ours = holder.pid == mine->pid && strcmp(holder.host, mine->host) == 0;
    if (!left && !has_ended(&holder, mine))
        return tr__fail(TR_STATE, "rank %d of group '%s' is taken: %s %ld on host %s has joined as rank %d; %s",
            r->member->rank, r->member->group, ours ? "this very process" : "process", holder.pid, holder.host, r->member->rank,
            ours ? "leave that group first, or give the one beside it another .name" : "each rank has a number of its own");
    return skip_used(r);
}

/* Ours in place of `expected`, NULL: of nothing. Frees it. */
static tr_status claim(tr__rendezvous *r, const tr__card *mine, char *expected)
{
    for (;;) {
        char *held = NULL;
        tr_status status = try_claim(r, mine, expected, &held);
        free(expected);
        bool ours = status == TR_OK && held && strcmp(held, r->claim) == 0;
        if (status == TR_OK && !ours) status = follow(r, mine, held);
        expected = held;
        if (status == TR_OK && !ours) continue;
        free(expected);
        if (!ours) r->claim[0] = 0;
        return status;
    }
}

tr_status tr__rendezvous_claim(tr__rendezvous *r, const tr__member *member, const tr__card *mine)
{
    *r = (tr__rendezvous){.member = member, .generation = 1, .dead = -1, .late = -1};
    r->deadline = tr__now_ns() + (int64_t)member->timeout_ms * 1000000;
    return claim(r, mine, NULL);
}

/* What fails in the next two is nobody's concern: the store may be gone, or stand still with the process that serves it. Then
 * nobody can join there again, and there is nothing to give back. */
static bool replace(tr__rendezvous *r, const char *key, const char *old, const char *by)
{
    tr__error *latest = tr__error_take();
    void *held = NULL;
    size_t bytes;
    tr_status status = tr__store_compare_set(r->member->store, key, old, strlen(old), by, strlen(by), WITHDRAW_MS, &held, &bytes);
    free(held);
    tr__fail_stored(latest);
    tr__error_unref(latest);
    return status == TR_OK;
}

/* The others find the same disagreement on our card that we found on theirs. */
void tr__rendezvous_give_up(tr__rendezvous *r, tr_status why)
{
    char key[KEY];
    if (!r->card[0] || why == TR_MISMATCH || why == TR_UNSUPPORTED) return;
    if (!replace(r, card_key(r, r->member->rank, key), r->card, "")) r->claim[0] = 0;
}

void tr__rendezvous_withdraw(tr__rendezvous *r)
{
    if (!r->claim[0]) return;
    char key[KEY], left[32];
    snprintf(left, sizeof left, "%ld left", r->generation);
    replace(r, claim_key(r, r->member->rank, key), r->claim, left);
    r->claim[0] = 0;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

tr_status tr__rendezvous_publish(tr__rendezvous *r, const tr__card *mine)
{
    char key[KEY];
    int length = snprintf(r->card, sizeof r->card, CARD_FORMAT("%s", "%s", "%s", "%s", "%s", "%s", "%s", "%" PRIx64),
        tr_version(), mine->rank, mine->world_size, mine->pid, mine->pid_space, mine->host, mine->machine, mine->address,
        mine->cookie, mine->tcp_address, mine->tcp_cookie, mine->table, mine->tls);
    return tr_store_set(r->member->store, card_key(r, mine->rank, key), r->card, (size_t)length);
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

/* Cards that are still to be had. */
typedef struct search {
    int *ranks, count;
    bool *gone; /* of all ranks: has taken its card down again, after a join that failed; another will follow */
} search;

/* Takes the cards that have come; the ranks of the others stay. */
static tr_status take_cards(tr__rendezvous *r, search *s, int from, int count, const tr__store_value *texts,
    tr__card *cards)
{
    for (int i = 0; i < count; i++) {
        int rank = s->ranks[from + i];
        s->gone[rank] = texts[i].data && texts[i].bytes == 0;
        if (texts[i].bytes == 0) {
            s->ranks[s->count++] = rank; /* which overtakes no rank that is yet to be read */
            continue;
        }
        TR__TRY(check_version(r, rank, texts[i].data));
        TR__TRY(tr__card_read(texts[i].data, &cards[rank]));
        TR__TRY(check_card(r, rank, &cards[rank]));
        tr__recorder_peer(r->member->recorder, rank, cards[rank].pid, cards[rank].host);
    }
    return TR_OK;
}

/* One request, which is answered when all of the cards are there, and after wait_ms with those that are. */
static tr_status gather_cards(tr__rendezvous *r, search *s, int from, int count, int wait_ms, tr__card *cards)
{
    char(*texts)[KEY] = malloc((size_t)count * sizeof *texts);
    const char **keys = calloc((size_t)count, sizeof *keys);
    tr__store_value *values = calloc((size_t)count, sizeof *values);
    tr_status status = TR_OK;
    if (!texts || !keys || !values)
        status = tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d cards", r->member->group, count);
    for (int i = 0; i < count && status == TR_OK; i++) keys[i] = card_key(r, s->ranks[from + i], texts[i]);
    if (status == TR_OK) status = tr__store_gather(r->member->store, keys, count, wait_ms, values);
    if (status == TR_OK || status == TR_TIMEOUT) {
        status = take_cards(r, s, from, count, values, cards);
        tr__store_values_free(values, count);
    }
    free(values);
    free(keys);
    free(texts);
    return status;
}

/* Who has never come; or, when all have and some are gone again, those. */
static tr_status say_missing(const tr__rendezvous *r, search *s)
{
    char list[TR__RANKS_TEXT];
    int missing = 0;
    for (int i = 0; i < s->count; i++) missing += !s->gone[s->ranks[i]];
    bool all = missing == 0;
    missing = 0;
    for (int i = 0; i < s->count; i++)
        if (all || !s->gone[s->ranks[i]]) s->ranks[missing++] = s->ranks[i];
    return tr__fail(TR_TIMEOUT, "group '%s': of %d ranks, %s did not join within %g s", r->member->group,
        r->member->world_size, tr__ranks_text(s->ranks, missing, missing, list), r->member->timeout_ms / 1000.0);
}

int tr__rendezvous_rest_ms(const tr__rendezvous *r)
{
    int64_t rest = (r->deadline - tr__now_ns()) / 1000000;
    rest = (rest > 0 ? rest : 0) + LAST_WORD_MS;
    return rest < INT_MAX ? (int)rest : INT_MAX; /* as who means "no limit" gives */
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

/* what: "died", "late" */
static char *news_key(const tr__rendezvous *r, const char *what, char key[KEY])
{
    snprintf(key, KEY, "group/%s/%s/%ld", r->member->group, what, r->generation);
    return key;
}

/* The values of some keys as they are now, to be freed. False: the store does not answer; then it is not asked for a while. */
static bool peek(tr__rendezvous *r, const char *const *keys, int count, tr__store_value *values)
{
    memset(values, 0, (size_t)count * sizeof *values);
    if (tr__now_ns() < r->silent_until) return false;
    tr__error *latest = tr__error_take();
    tr_status asked = tr__store_gather(r->member->store, keys, count, 0, values);
    bool answers = asked == TR_OK || asked == TR_TIMEOUT;
    if (!answers) r->silent_until = tr__now_ns() + SILENT_MS * (int64_t)1000000;
    tr__fail_stored(latest);
    tr__error_unref(latest);
    return answers;
}

/* Where a rank stands, by the store. */
typedef enum standing { IN, OUT, UNKNOWN } standing;

/* Out is a rank that has taken its card down, as who gives up does, or given its number back, as who leaves does. */
static standing standing_of(tr__rendezvous *r, const tr__card *its)
{
    char keys[2][KEY], state[16] = "";
    const char *both[] = {card_key(r, its->rank, keys[0]), claim_key(r, its->rank, keys[1])};
    tr__store_value values[2];
    if (!peek(r, both, 2, values)) return UNKNOWN;
    const char *card = values[0].data, *claim = values[1].data;
    bool left = claim && sscanf(claim, "%*d %15s", state) == 1 && strcmp(state, "left") == 0;
    bool in = card && strstr(card, its->cookie) && !left;
    tr__store_values_free(values, 2);
    return in ? IN : OUT;
}

static tr_status died(const tr__rendezvous *r, const tr__card *card)
{
    return tr__fail(TR_PEER, "group '%s': rank %d (pid %ld) died, or exited, while joining", r->member->group,
        card->rank, card->pid);
}

tr_status tr__rendezvous_check(tr__rendezvous *r, const tr__card *cards, int rank)
{
    if (!has_ended(&cards[rank], &cards[r->member->rank]) || standing_of(r, &cards[rank]) == OUT) return TR_OK;
    r->dead = rank;
    return died(r, &cards[rank]);
}

/* In place of what an earlier try to join may have left there. */
static void tell(tr__rendezvous *r, const char *what, const tr__card *card)
{
    tr__error *latest = tr__error_take(); /* without the store they find out at the deadline */
    char key[KEY], text[16 + TR__COOKIE_TEXT];
    size_t length = (size_t)snprintf(text, sizeof text, "%d %s", card->rank, card->cookie), bytes;
    void *held = NULL, *now = NULL;
    tr_status told = tr__store_compare_set(r->member->store, news_key(r, what, key), NULL, 0, text, length, WITHDRAW_MS, &held,
        &bytes);
    if (told == TR_OK && held && strcmp(held, text) != 0)
        told = tr__store_compare_set(r->member->store, key, held, bytes, text, length, WITHDRAW_MS, &now, &bytes);
    if (card->rank == r->dead) told = mark_used(r, WITHDRAW_MS); /* its card stays there, and nobody is to wait for it again */
    (void)told;
    free(held);
    free(now);
    tr__fail_stored(latest);
    tr__error_unref(latest);
}

/* The card of whom somebody has told of, if it is still there, and not that of one which has come again since. Finds out, too,
 * whether the generation is used. */
static bool told(tr__rendezvous *r, const char *what, tr__card *card)
{
    char keys[2][KEY], cookie[TR__COOKIE_TEXT];
    const char *asked[] = {news_key(r, what, keys[0]), used_key(r, keys[1])};
    int rank = -1;
    tr__store_value news[2], text = {0};
    bool known = peek(r, asked, 2, news);
    if (known && news[1].data) r->used = true;
    known = known && news[0].data && sscanf(news[0].data, "%d %32s", &rank, cookie) == 2;
    if (known) asked[0] = card_key(r, rank, keys[0]);
    if (known) known = peek(r, asked, 1, &text) && text.data && strstr(text.data, cookie);
    known = known && tr__card_read(text.data, card) == TR_OK;
    tr__store_values_free(news, 2);
    tr__store_values_free(&text, 1);
    return known;
}

tr_status tr__rendezvous_heed(tr__rendezvous *r)
{
    tr__card card;
    int64_t now = tr__now_ns();
    if (now - r->heeded < HEED_MS * (int64_t)1000000) return TR_OK;
    r->heeded = now;
    return told(r, "died", &card) ? died(r, &card) : TR_OK;
}

/* Who dies closes its connections a moment before it is seen to be dead, if that can be seen from here at all; who gives up has
 * taken its card down by then, and who leaves gives its number back soon after. Where the store went along, only the first to
 * hang up is to blame: others may have left because of it. */
tr_status tr__rendezvous_hung_up(tr__rendezvous *r, const tr__card *cards, int rank, int64_t since)
{
    r->heeded = 0; /* now */
    TR__TRY(tr__rendezvous_heed(r));
    TR__TRY(tr__rendezvous_check(r, cards, rank));
    if (!r->first_end) r->first_end = since;
    if (tr__now_ns() - since < LEAVE_MS * (int64_t)1000000) return TR_OK;
    standing where = standing_of(r, &cards[rank]);
    if (where == OUT || (where == UNKNOWN && since > r->first_end)) return TR_OK;
    r->dead = rank;
    return tr__fail(TR_PEER, "group '%s': rank %d (pid %ld) closed the connection while joining", r->member->group, rank,
        cards[rank].pid);
}

tr_status tr__rendezvous_await_reason(tr__rendezvous *r, const tr__card *cards, int rank)
{
    enum { PAUSE_NS = 5000000 };
    int64_t since = tr__now_ns(), until = since + 2 * LEAVE_MS * (int64_t)1000000;
    while (tr__now_ns() < until) {
        TR__TRY(tr__rendezvous_hung_up(r, cards, rank, since));
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return TR_OK;
}

/* Fails when somebody is known to have died, or to have kept a rank waiting that knows no more than that. */
static tr_status find_reason(tr__rendezvous *r, const tr__card *cards, int suspect)
{
    tr__card card;
    r->heeded = 0;
    TR__TRY(suspect >= 0 ? tr__rendezvous_await_reason(r, cards, suspect) : tr__rendezvous_heed(r));
    for (int rank = 0; rank < r->member->world_size; rank++)
        if (cards[rank].pid) TR__TRY(tr__rendezvous_check(r, cards, rank));
    if (!told(r, "late", &card) || card.rank == r->member->rank) return TR_OK;
    return tr__fail(TR_TIMEOUT, "group '%s': rank %d (pid %ld on host %s) did not come to the meeting in time", r->member->group,
        card.rank, card.pid, card.host);
}

tr_status tr__rendezvous_explain(tr__rendezvous *r, const tr__card *cards, int suspect, tr_status status)
{
    if (status != TR_PEER && status != TR_TIMEOUT) return status;
    tr__error *own = tr__error_take();
    bool knows = r->dead >= 0 || r->late >= 0; /* by itself */
    tr_status better = knows ? TR_OK : find_reason(r, cards, suspect);
    if (r->dead >= 0) tell(r, "died", &cards[r->dead]);
    else if (r->late >= 0) tell(r, "late", &cards[r->late]);
    if (better == TR_OK || (suspect >= 0 && r->dead == suspect)) tr__fail_stored(own); /* which says more of that rank */
    else status = better;
    tr__error_unref(own);
    return status;
}

/* ---- Waiting for cards ------------------------------------------------------------------------------------------- */

/* In a used generation a card that is not there never comes: its rank joins in a later one. */
static tr_status say_over(const tr__rendezvous *r, const search *s)
{
    char list[TR__RANKS_TEXT];
    return tr__fail(TR_PEER, "group '%s': %s gave up joining when others had met", r->member->group,
        tr__ranks_text(s->ranks, s->count, s->count, list));
}

/* Until all have come: looks at what is there at growing intervals, to find a card that cannot go together with ours
 * and to let be seen who is waited for. */
static tr_status find_cards(tr__rendezvous *r, search *s, tr__card *cards)
{
    for (int wait_ms = LOOK_FIRST_MS;; wait_ms = 2 * wait_ms < LOOK_MOST_MS ? 2 * wait_ms : LOOK_MOST_MS) {
        int64_t left = (r->deadline - tr__now_ns()) / 1000000;
        int now_ms = left < 0 ? 0 : left < wait_ms ? (int)left : wait_ms, asked = s->count;
        s->count = 0;
        for (int from = 0; from < asked; from += AT_ONCE)
            TR__TRY(gather_cards(r, s, from, asked - from < AT_ONCE ? asked - from : AT_ONCE, now_ms, cards));
        if (s->count == 0) return TR_OK;
        TR__TRY(tr__rendezvous_heed(r));
        if (r->used) return say_over(r, s);
        if (left <= 0) return say_missing(r, s);
        tr__recorder_waits_for(r->member->recorder, s->ranks, s->count);
        if (s->gone[s->ranks[0]]) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* there is nothing to wait on */
    }
}

/* first … first + count - 1 */
static tr_status read_ranks(tr__rendezvous *r, int first, int count, tr__card *cards)
{
    search s = {.count = count};
    s.ranks = malloc((size_t)count * sizeof *s.ranks);
    s.gone = calloc((size_t)r->member->world_size, sizeof *s.gone);
    tr_status status = TR_OK;
    if (!s.ranks || !s.gone)
        status = tr__fail(TR_NO_MEMORY, "group '%s': no memory for %d ranks", r->member->group, count);
    for (int i = 0; i < count && status == TR_OK; i++) s.ranks[i] = first + i;
    if (status == TR_OK) status = find_cards(r, &s, cards);
    free(s.ranks);
    free(s.gone);
    return status;
}

tr_status tr__rendezvous_read(tr__rendezvous *r, int rank, tr__card *cards)
{
    return read_ranks(r, rank, 1, cards);
}

/* First that of rank 0, which may serve the store, and take it along when it finds that our world is not its own. Then
 * all ranks ask for the same keys, so that the server makes one answer for them. */
tr_status tr__rendezvous_read_all(tr__rendezvous *r, tr__card *cards)
{
    tr_status status = r->member->rank == 0 ? TR_OK : read_ranks(r, 0, 1, cards);
    if (status != TR_OK && status != TR_TIMEOUT) return status; /* who else is missing is to be said too */
    return read_ranks(r, 0, r->member->world_size, cards);
}

tr_status tr__rendezvous_go_on(tr__rendezvous *r, const tr__card *mine)
{
    char key[KEY], *expected = strdup(r->claim);
    if (!expected) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", r->member->group);
    replace(r, card_key(r, mine->rank, key), r->card, "");
    r->card[0] = 0;
    r->used = false;
    tr_status status = skip_used(r);
    if (status == TR_OK) return claim(r, mine, expected);
    free(expected);
    return status;
}
