#include "comm/join/rendezvous.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/object.h"
#include "comm/record/record.h"
#include "net/network.h"
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
    KEY = TR__RENDEZVOUS_KEY,
    WITHDRAW_MS = 1000,
    AT_ONCE = 4096, /* records in one request: 3 MiB */
    LOOK_FIRST_MS = 100,
    LOOK_MOST_MS = 5000,
    CHECK_MS = 250,
    LAST_WORD_MS = 500,
    LEAVE_MS = 250,   /* from a rank's hanging up to its having given its number back */
    SILENT_MS = 2000, /* that a store which did not answer is not asked again */
};

/* ---- Endpoint records -------------------------------------------------------------------------------------------- */

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

void tr__endpoint_record_here(const tr__member *member, tr__endpoint_record *record)
{
    *record = (tr__endpoint_record){.rank = member->rank, .world_size = member->world_size, .pid = (long)getpid()};
    record->pid_space = namespace_of("/proc/self/ns/pid");
    if (gethostname(record->host, sizeof record->host - 1) != 0 || !record->host[0]) strcpy(record->host, "unknown");
    machine_text(record->machine, sizeof record->machine);
}

/* The format's number and the library's version come first in every format, so that any two libraries can tell that they differ. */
#define RECORD_NUMBER "5"
#define RECORD_FORMAT(version, host, machine, address, cookie, tcp_address, tcp_cookie, table)                          \
    "trireme-endpoint " RECORD_NUMBER " version " version " rank %d of %d pid %ld in %lu host " host " machine " machine\
    " address " address " cookie " cookie " tcp " tcp_address " cookie " tcp_cookie " table " table " tls %d"

tr_status tr__endpoint_record_read(const char *text, tr__endpoint_record *record)
{
    *record = (tr__endpoint_record){0};
    int fields = sscanf(text, RECORD_FORMAT("%23s", "%64s", "%128s", "%108s", "%32s", "%78s", "%32s", "%" SCNx64),
        record->version, &record->rank, &record->world_size, &record->pid, &record->pid_space, record->host, record->machine,
        record->address, record->cookie, record->tcp_address, record->tcp_cookie, &record->table, &record->tls);
    if (fields != 13 || strlen(record->cookie) != TR__COOKIE_TEXT - 1)
        return tr__fail(TR_FORMAT, "'%.40s' is no endpoint record", text);
    return TR_OK;
}

bool tr__endpoint_record_visible(const tr__endpoint_record *record, const tr__endpoint_record *mine)
{
    return record->pid_space == mine->pid_space && mine->pid_space && strcmp(record->machine, mine->machine) == 0;
}

/* Libraries of two versions lay out what they share in different ways: they part before they connect. */
static tr_status check_version(const tr__rendezvous *r, int rank, const char *text)
{
    char number[8] = "", version[24] = "of an earlier version";
    if (sscanf(text, "trireme-endpoint %7s version %23s", number, version) < 1) return TR_OK; /* damaged: reading it says so */
    if (strcmp(number, RECORD_NUMBER) == 0 && strcmp(version, tr_version()) == 0) return TR_OK;
    return tr__fail(TR_MISMATCH, "group '%s': rank %d runs Trireme %s, rank %d runs Trireme %s: all ranks of a job need the same "
        "version", r->member->group, r->member->rank, tr_version(), rank, version);
}

/* One that nobody has reaped yet still has its number. */
static bool has_ended(const tr__endpoint_record *record, const tr__endpoint_record *mine)
{
    if (!tr__endpoint_record_visible(record, mine)) return false;
    if (kill((pid_t)record->pid, 0) != 0) return errno == ESRCH;
    return tr__process_of(record->pid).state == 'X' && tr__process_of(mine->pid).state != 'X';
}

/* ---- Registration ------------------------------------------------------------------------------------------------ */

static char *rank_key(const tr__rendezvous *r, int rank, char key[KEY])
{
    snprintf(key, KEY, "group/%s/rank/%d", r->member->group, rank);
    return key;
}

char *tr__rendezvous_key(const tr__rendezvous *r, const char *what, int rank, char key[TR__RENDEZVOUS_KEY])
{
    int used = snprintf(key, KEY, "group/%s/%s/%ld", r->member->group, what, r->generation);
    if (rank >= 0) snprintf(key + used, KEY - (size_t)used, "/%d", rank);
    return key;
}

/* Puts a text in place of `old` (NULL: of nothing). *held gets what stands in the store then, to be freed. */
static tr_status swap(const tr__rendezvous *r, const char *key, const char *old, const char *by, int timeout_ms, char **held)
{
    size_t bytes;
    *held = NULL;
    return tr__store_compare_set(r->member->store, key, old, old ? strlen(old) : 0, by, strlen(by), timeout_ms, (void **)held,
        &bytes);
}

static tr_status mark_used(tr__rendezvous *r, int timeout_ms)
{
    char key[KEY];
    TR__FREED char *held = NULL;
    return swap(r, tr__rendezvous_key(r, "used", -1, key), NULL, "", timeout_ms, &held);
}

tr_status tr__rendezvous_use(tr__rendezvous *r)
{
    return mark_used(r, tr__rendezvous_rest_ms(r));
}

/* Goes on to the first generation that is not used, from r->generation on. */
static tr_status skip_used(tr__rendezvous *r)
{
    for (char key[KEY];; r->generation++) {
        const char *asked = tr__rendezvous_key(r, "used", -1, key);
        tr__store_value value;
        tr_status status = tr__store_gather(r->member->store, &asked, 1, 0, &value);
        if (status == TR_TIMEOUT) return TR_OK; /* it is not there */
        TR__TRY(status);
        free(value.data);
    }
}

/* Tries to register in place of `expected` (NULL: of nothing). *held gets what stands in the store then; to be freed. */
static tr_status try_register(tr__rendezvous *r, const tr__endpoint_record *mine, const char *expected, char **held)
{
    char word[17], key[KEY];
    TR__TRY(tr__random_text(word, sizeof word));
    snprintf(r->registration, sizeof r->registration, "%ld joined %s %ld %s %lu %s", r->generation, word, mine->pid, mine->host,
        mine->pid_space, mine->machine);
    return swap(r, rank_key(r, r->member->rank, key), expected, r->registration, r->member->store->timeout_ms, held);
}

/* Another process is registered. Fails, or sets the generation that may follow it: a process that can be seen to have ended without
 * giving its number back holds it no longer. */
static tr_status follow(tr__rendezvous *r, const tr__endpoint_record *mine, const char *held)
{
    char state[16];
    tr__endpoint_record holder = {.host = "?"};
    if (!held || sscanf(held, "%ld %15s %*s %ld %64s %lu %128s", &r->generation, state, &holder.pid, holder.host,
                     &holder.pid_space, holder.machine) < 2)
        return tr__fail(TR_FORMAT, "group '%s': the registration of rank %d in the store is damaged", r->member->group,
                        r->member->rank);
    bool left = strcmp(state, "left") == 0, ours = holder.pid == mine->pid && strcmp(holder.host, mine->host) == 0;
    if (!left && !has_ended(&holder, mine))
        return tr__fail(TR_STATE, "rank %d of group '%s' is taken: %s %ld on host %s has joined as rank %d; %s",
            r->member->rank, r->member->group, ours ? "this very process" : "process", holder.pid, holder.host, r->member->rank,
            ours ? "leave that group first, or give the one beside it another .name" : "each rank has a number of its own");
    return skip_used(r);
}

/* Registers this process in place of `expected` (NULL: of nothing), which it frees. */
static tr_status register_rank(tr__rendezvous *r, const tr__endpoint_record *mine, char *expected)
{
    for (;;) {
        char *held = NULL;
        tr_status status = try_register(r, mine, expected, &held);
        free(expected);
        bool ours = status == TR_OK && held && strcmp(held, r->registration) == 0;
        if (status == TR_OK && !ours) status = follow(r, mine, held);
        expected = held;
        if (status == TR_OK && !ours) continue;
        free(expected);
        if (!ours) r->registration[0] = 0;
        return status;
    }
}

tr_status tr__rendezvous_register(tr__rendezvous *r, const tr__member *member, const tr__endpoint_record *mine)
{
    *r = (tr__rendezvous){.member = member, .generation = 1, .said = -1, .dead = -1, .late = -1};
    r->deadline = tr__now_ns() + (int64_t)member->timeout_ms * 1000000;
    return register_rank(r, mine, NULL);
}

/* What fails in the next two is nobody's concern: the store may be gone, or stand still with the process that serves it. Then
 * nobody can join there again, and there is nothing to give back. */
static bool replace(tr__rendezvous *r, const char *key, const char *old, const char *by)
{
    TR__KEEP_ERROR;
    TR__FREED char *held = NULL;
    return swap(r, key, old, by, WITHDRAW_MS, &held) == TR_OK;
}

/* The others find the same disagreement on our record that we found on theirs. */
void tr__rendezvous_give_up(tr__rendezvous *r, tr_status why)
{
    char key[KEY];
    if (!r->record[0] || why == TR_MISMATCH || why == TR_UNSUPPORTED) return;
    if (!replace(r, tr__rendezvous_key(r, "endpoint", r->member->rank, key), r->record, "")) r->registration[0] = 0;
}

void tr__rendezvous_withdraw(tr__rendezvous *r)
{
    if (!r->registration[0]) return;
    char key[KEY], left[32];
    snprintf(left, sizeof left, "%ld left", r->generation);
    replace(r, rank_key(r, r->member->rank, key), r->registration, left);
    r->registration[0] = 0;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

tr_status tr__rendezvous_publish(tr__rendezvous *r, const tr__endpoint_record *mine)
{
    char key[KEY];
    int length = snprintf(r->record, sizeof r->record, RECORD_FORMAT("%s", "%s", "%s", "%s", "%s", "%s", "%s", "%" PRIx64),
        tr_version(), mine->rank, mine->world_size, mine->pid, mine->pid_space, mine->host, mine->machine, mine->address,
        mine->cookie, mine->tcp_address, mine->tcp_cookie, mine->table, mine->tls);
    return tr_store_set(r->member->store, tr__rendezvous_key(r, "endpoint", mine->rank, key), r->record, (size_t)length);
}

static tr_status check_record(const tr__rendezvous *r, int rank, const tr__endpoint_record *record)
{
    if (record->rank != rank)
        return tr__fail(TR_FORMAT, "group '%s': the endpoint record of rank %d says rank %d", r->member->group, rank, record->rank);
    if (record->world_size != r->member->world_size)
        return tr__fail(TR_MISMATCH, "group '%s': rank %d joins with a world size of %d, rank %d with %d",
                        r->member->group, r->member->rank, r->member->world_size, rank, record->world_size);
    return TR_OK;
}

/* Records that have not come yet, and what is needed to ask for AT_ONCE of them. */
typedef struct search {
    int *ranks, count;
    bool *gone; /* of all ranks: has withdrawn its record, after a join that failed; another will follow */
    char (*texts)[KEY];
    const char **keys;
    tr__store_value *values;
} search;

/* Takes the records that have come; the ranks of the others stay. */
static tr_status take_records(tr__rendezvous *r, search *s, int from, int count, tr__endpoint_record *records)
{
    for (int i = 0; i < count; i++) {
        int rank = s->ranks[from + i];
        const tr__store_value *text = &s->values[i];
        s->gone[rank] = text->data && text->bytes == 0;
        if (text->bytes == 0) {
            s->ranks[s->count++] = rank; /* which overtakes no rank that is yet to be read */
            continue;
        }
        TR__TRY(check_version(r, rank, text->data));
        TR__TRY(tr__endpoint_record_read(text->data, &records[rank]));
        TR__TRY(check_record(r, rank, &records[rank]));
        tr__recorder_peer(r->member->recorder, rank, records[rank].pid, records[rank].host);
    }
    return TR_OK;
}

/* One request, which is answered when all of the records are there, and after wait_ms with those that are. */
static tr_status gather_records(tr__rendezvous *r, search *s, int from, int count, int wait_ms, tr__endpoint_record *records)
{
    for (int i = 0; i < count; i++) s->keys[i] = tr__rendezvous_key(r, "endpoint", s->ranks[from + i], s->texts[i]);
    tr_status status = tr__store_gather(r->member->store, s->keys, count, wait_ms, s->values);
    if (status != TR_OK && status != TR_TIMEOUT) return status;
    status = take_records(r, s, from, count, records);
    tr__store_values_free(s->values, count);
    return status;
}

int tr__rendezvous_rest_ms(const tr__rendezvous *r)
{
    int64_t rest = (r->deadline - tr__now_ns()) / 1000000;
    rest = (rest > 0 ? rest : 0) + (r->chained ? 4 : 1) * LAST_WORD_MS; /* find_late() takes its time */
    return rest < INT_MAX ? (int)rest : INT_MAX; /* as who means "no limit" gives */
}

/* ---- Deaths ------------------------------------------------------------------------------------------------------ */

/* The values of some keys as they are now, to be freed. False: the store does not answer; then it is not asked for a while. */
static bool peek(tr__rendezvous *r, const char *const *keys, int count, tr__store_value *values)
{
    memset(values, 0, (size_t)count * sizeof *values);
    if (tr__now_ns() < r->silent_until) return false;
    TR__KEEP_ERROR;
    tr_status asked = tr__store_gather(r->member->store, keys, count, 0, values);
    bool answers = asked == TR_OK || asked == TR_TIMEOUT;
    if (!answers) r->silent_until = tr__now_ns() + SILENT_MS * (int64_t)1000000;
    return answers;
}

/* Where a rank stands, by the store. */
typedef enum standing { IN, OUT, UNKNOWN } standing;

/* OUT: the rank has withdrawn its record (it gave up), or given its number back (it left). */
static standing standing_of(tr__rendezvous *r, const tr__endpoint_record *its)
{
    char keys[2][KEY], state[16] = "";
    const char *both[] = {tr__rendezvous_key(r, "endpoint", its->rank, keys[0]), rank_key(r, its->rank, keys[1])};
    tr__store_value values[2];
    if (!peek(r, both, 2, values)) return UNKNOWN;
    const char *record = values[0].data, *holder = values[1].data;
    bool left = holder && sscanf(holder, "%*d %15s", state) == 1 && strcmp(state, "left") == 0;
    bool in = record && strstr(record, its->cookie) && !left;
    tr__store_values_free(values, 2);
    return in ? IN : OUT;
}

static tr_status died(const tr__rendezvous *r, const tr__endpoint_record *record)
{
    return tr__fail(TR_PEER, "group '%s': rank %d (pid %ld) died, or exited, while joining", r->member->group,
        record->rank, record->pid);
}

tr_status tr__rendezvous_check(tr__rendezvous *r, const tr__endpoint_record *records, int rank)
{
    if (!has_ended(&records[rank], &records[r->member->rank]) || standing_of(r, &records[rank]) == OUT) return TR_OK;
    r->dead = rank;
    return died(r, &records[rank]);
}

static tr_status did_not_come(const tr__rendezvous *r, const tr__endpoint_record *record)
{
    return tr__fail(TR_TIMEOUT, "group '%s': rank %d (pid %ld on host %s) did not come to the meeting in time", r->member->group,
        record->rank, record->pid, record->host);
}

/* Puts a rank and its cookie in place of what is there. The store gets little time: who tells waits for somebody, too. */
static tr_status put(tr__rendezvous *r, const char *key, int rank, const char *cookie)
{
    char text[16 + TR__COOKIE_TEXT];
    TR__FREED char *held = NULL, *now = NULL;
    snprintf(text, sizeof text, "%d %s", rank, cookie);
    TR__TRY(swap(r, key, NULL, text, WITHDRAW_MS, &held));
    return held && strcmp(held, text) != 0 ? swap(r, key, held, text, WITHDRAW_MS, &now) : TR_OK;
}

static void tell(tr__rendezvous *r, const char *what, const tr__endpoint_record *record)
{
    TR__KEEP_ERROR; /* without the store they find out at the deadline */
    char key[KEY];
    (void)!put(r, tr__rendezvous_key(r, what, -1, key), record->rank, record->cookie);
    if (record->rank == r->dead) (void)!mark_used(r, WITHDRAW_MS); /* its record stays, and nobody is to wait for it again */
}

/* The record of the rank that others have reported as `what`, if it still stands and is not of a later try to join. Notes whether
 * the generation is used, too. */
static bool told(tr__rendezvous *r, const char *what, tr__endpoint_record *record)
{
    char keys[2][KEY], cookie[TR__COOKIE_TEXT];
    /* The mark first: whoever tells of a death sets it last, and some stores are asked for one key after the other. */
    const char *asked[] = {tr__rendezvous_key(r, "used", -1, keys[0]), tr__rendezvous_key(r, what, -1, keys[1])};
    int rank = -1;
    tr__store_value news[2], text = {0};
    bool known = peek(r, asked, 2, news);
    if (known && news[0].data) r->used = true;
    known = known && news[1].data && sscanf(news[1].data, "%d %32s", &rank, cookie) == 2;
    if (known) asked[0] = tr__rendezvous_key(r, "endpoint", rank, keys[0]);
    if (known) known = peek(r, asked, 1, &text) && text.data && strstr(text.data, cookie);
    known = known && tr__endpoint_record_read(text.data, record) == TR_OK;
    tr__store_values_free(news, 2);
    tr__store_values_free(&text, 1);
    return known;
}

tr_status tr__rendezvous_check_peers(tr__rendezvous *r)
{
    tr__endpoint_record record;
    int64_t now = tr__now_ns();
    if (now - r->checked < CHECK_MS * (int64_t)1000000) return TR_OK;
    r->checked = now;
    return told(r, "died", &record) ? died(r, &record) : TR_OK;
}

/* Who dies closes its connections a moment before it is seen to be dead, if that can be seen from here at all; who gives up has
 * withdrawn its record by then, and who leaves gives its number back soon after. Where the store went along, only the first to
 * hang up is the culprit: others may have left because of it. */
tr_status tr__rendezvous_hung_up(tr__rendezvous *r, const tr__endpoint_record *records, int rank, int64_t since)
{
    r->checked = 0; /* now */
    TR__TRY(tr__rendezvous_check_peers(r));
    TR__TRY(tr__rendezvous_check(r, records, rank));
    if (!r->first_end) r->first_end = since;
    if (tr__now_ns() - since < LEAVE_MS * (int64_t)1000000) return TR_OK;
    standing where = standing_of(r, &records[rank]);
    if (where == OUT || (where == UNKNOWN && since > r->first_end)) return TR_OK;
    r->dead = rank;
    return tr__fail(TR_PEER, "group '%s': rank %d (pid %ld) closed the connection while joining", r->member->group, rank,
        records[rank].pid);
}

tr_status tr__rendezvous_await_reason(tr__rendezvous *r, const tr__endpoint_record *records, int rank)
{
    enum { PAUSE_NS = 5000000 };
    int64_t since = tr__now_ns(), until = since + 2 * LEAVE_MS * (int64_t)1000000;
    while (tr__now_ns() < until) {
        TR__TRY(tr__rendezvous_hung_up(r, records, rank, since));
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return TR_OK;
}

/* Fails when somebody is known to have died, or to have kept a rank waiting that knows no more than that. */
static tr_status find_reason(tr__rendezvous *r, const tr__endpoint_record *records, int suspect)
{
    tr__endpoint_record record;
    r->checked = 0;
    TR__TRY(suspect >= 0 ? tr__rendezvous_await_reason(r, records, suspect) : tr__rendezvous_check_peers(r));
    for (int rank = 0; rank < r->member->world_size; rank++)
        if (records[rank].pid) TR__TRY(tr__rendezvous_check(r, records, rank));
    return told(r, "late", &record) && record.rank != r->member->rank ? did_not_come(r, &record) : TR_OK;
}

/* Whom this rank waits for, for those who wait for it. */
static void say_late(tr__rendezvous *r, const tr__endpoint_record *records, int rank)
{
    char key[KEY];
    int own = r->member->rank;
    if (rank == r->said || tr__now_ns() < r->silent_until) return;
    TR__KEEP_ERROR; /* without the store they find out less */
    if (put(r, tr__rendezvous_key(r, "late", own, key), rank, records[own].cookie) == TR_OK) r->said = rank;
    else r->silent_until = tr__now_ns() + SILENT_MS * (int64_t)1000000;
}

void tr__rendezvous_waits_for(tr__rendezvous *r, const tr__endpoint_record *records, int rank)
{
    int64_t left = r->deadline - tr__now_ns();
    if (r->chained && left < r->member->timeout_ms / 2 * (int64_t)1000000) say_late(r, records, rank);
}

/* Whom a rank says that it has waited for in vain; -1: it does not say so within a moment. */
static int late_of(tr__rendezvous *r, const tr__endpoint_record *its)
{
    char key[KEY], cookie[TR__COOKIE_TEXT];
    const char *asked = tr__rendezvous_key(r, "late", its->rank, key);
    tr__store_value value = {0};
    int late = -1;
    tr_status status = tr__store_gather(r->member->store, &asked, 1, LAST_WORD_MS, &value);
    bool said = status == TR_OK && value.data && sscanf(value.data, "%d %32s", &late, cookie) == 2;
    tr__store_values_free(&value, 1);
    return said && strcmp(cookie, its->cookie) == 0 && late >= 0 && late < r->member->world_size ? late : -1;
}

/* The one that was waited for may itself have waited, and so on: fails with the last one, whom this rank itself may not be
 * to meet, or have met. */
static tr_status find_late(tr__rendezvous *r, const tr__endpoint_record *records)
{
    int own = r->member->rank, rank = r->late;
    say_late(r, records, rank);
    for (int hops = 0, next; hops < r->member->world_size; hops++, rank = next) {
        next = late_of(r, &records[rank]);
        if (next < 0 || next == own || next == r->late) break;
    }
    if (rank == r->late) return TR_OK;
    r->late = rank;
    return did_not_come(r, &records[rank]);
}

tr_status tr__rendezvous_explain(tr__rendezvous *r, const tr__endpoint_record *records, int suspect, tr_status status)
{
    if (status != TR_PEER && status != TR_TIMEOUT) return status;
    tr__error *own = tr__error_take();
    bool knows = r->dead >= 0 || r->late >= 0; /* by itself */
    tr_status better = knows ? TR_OK : find_reason(r, records, suspect);
    if (r->dead < 0 && r->late >= 0 && r->chained) better = find_late(r, records);
    if (r->dead >= 0) tell(r, "died", &records[r->dead]);
    else if (r->late >= 0) tell(r, "late", &records[r->late]);
    if (better == TR_OK || (suspect >= 0 && r->dead == suspect)) tr__fail_stored(own); /* which says more of that rank */
    else status = better;
    tr__error_unref(own);
    return status;
}

/* ---- Waiting for records ----------------------------------------------------------------------------------------- */

/* A rank that registers when a death has been told waits in the generation after it, where nobody may follow: the dead rank of the
 * one before, if it is among those that are missing. */
static bool died_before(tr__rendezvous *r, const int *missing, int count, tr__endpoint_record *record)
{
    bool used = r->used, among = false;
    if (r->generation < 2) return false;
    r->generation--;
    bool known = told(r, "died", record);
    r->generation++;
    r->used = used; /* told() has looked at the other one */
    for (int i = 0; i < count; i++) among |= known && missing[i] == record->rank;
    return among;
}

/* Who has never come; or, when all have and some are gone again, those. */
static tr_status say_missing(tr__rendezvous *r, search *s)
{
    tr__endpoint_record dead;
    char list[TR__RANKS_TEXT], reason[96] = "";
    int missing = 0;
    for (int i = 0; i < s->count; i++) missing += !s->gone[s->ranks[i]];
    bool all = missing == 0;
    missing = 0;
    for (int i = 0; i < s->count; i++)
        if (all || !s->gone[s->ranks[i]]) s->ranks[missing++] = s->ranks[i];
    if (died_before(r, s->ranks, missing, &dead))
        snprintf(reason, sizeof reason, "; rank %d (pid %ld) died, or exited, while joining before", dead.rank, dead.pid);
    return tr__fail(TR_TIMEOUT, "group '%s': of %d ranks, %s did not join within %g s%s", r->member->group,
        r->member->world_size, tr__ranks_text(s->ranks, missing, missing, list), r->member->timeout_ms / 1000.0, reason);
}

/* In a used generation a record that is not there never comes: its rank joins in a later one. */
static tr_status say_over(const tr__rendezvous *r, const search *s)
{
    char list[TR__RANKS_TEXT];
    return tr__fail(TR_PEER, "group '%s': %s gave up joining when others had met", r->member->group,
        tr__ranks_text(s->ranks, s->count, s->count, list));
}

/* The store broke off: who had not come yet. */
static tr_status say_lost(const tr__rendezvous *r, const search *s, int missing)
{
    char list[TR__RANKS_TEXT];
    return tr__fail_context(TR_IO, "group '%s': of %d ranks, %s had not joined yet", r->member->group, r->member->world_size,
        tr__ranks_text(s->ranks, missing, missing, list));
}

/* Until all have come: looks at what is there at growing intervals, to find a record that cannot go together with ours
 * and to let be seen who is waited for. Where the generation is used by now, whose records may have come since the last look: a
 * rank that has read all marks it so before the others have. */
static tr_status find_records(tr__rendezvous *r, search *s, tr__endpoint_record *records)
{
    for (int wait_ms = LOOK_FIRST_MS;; wait_ms = 2 * wait_ms < LOOK_MOST_MS ? 2 * wait_ms : LOOK_MOST_MS) {
        int64_t left = (r->deadline - tr__now_ns()) / 1000000;
        int now_ms = r->used || left < 0 ? 0 : left < wait_ms ? (int)left : wait_ms, asked = s->count;
        bool used = r->used;
        s->count = 0;
        for (int from = 0; from < asked; from += AT_ONCE) {
            tr_status status = gather_records(r, s, from, asked - from < AT_ONCE ? asked - from : AT_ONCE, now_ms, records);
            if (status == TR_IO && wait_ms > LOOK_FIRST_MS) {
                memmove(s->ranks + s->count, s->ranks + from, (size_t)(asked - from) * sizeof *s->ranks);
                return say_lost(r, s, s->count + asked - from);
            }
            TR__TRY(status);
        }
        if (s->count == 0) {
            r->used = false; /* it is ours */
            return TR_OK;
        }
        if (used) return say_over(r, s);
        TR__TRY(tr__rendezvous_check_peers(r));
        if (r->used) continue;
        if (left <= 0) return say_missing(r, s);
        tr__recorder_waits_for(r->member->recorder, s->ranks, s->count);
        if (s->gone[s->ranks[0]]) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* there is nothing to wait on */
    }
}

tr_status tr__rendezvous_read(tr__rendezvous *r, int first, int count, tr__endpoint_record *records)
{
    size_t all = (size_t)count, asked = all < AT_ONCE ? all : AT_ONCE;
    TR__FREED int *ranks = tr__zeroed(all, sizeof *ranks);
    TR__FREED bool *gone = tr__zeroed((size_t)r->member->world_size, sizeof *gone);
    TR__FREED char(*texts)[KEY] = tr__zeroed(asked, sizeof *texts);
    TR__FREED const char **keys = tr__zeroed(asked, sizeof *keys);
    TR__FREED tr__store_value *values = tr__zeroed(asked, sizeof *values);
    if (!ranks || !gone || !texts || !keys || !values)
        return tr__fail(TR_NO_MEMORY, "group '%s': no memory for the endpoint records of %d ranks", r->member->group, count);
    for (int i = 0; i < count; i++) ranks[i] = first + i;
    search s = {.count = count, .ranks = ranks, .gone = gone, .texts = texts, .keys = keys, .values = values};
    return find_records(r, &s, records);
}

/* First that of rank 0, which may serve the store, and take it along when it finds that our world is not its own. Then
 * all ranks ask for the same keys, so that the server makes one answer for them. */
tr_status tr__rendezvous_read_all(tr__rendezvous *r, tr__endpoint_record *records)
{
    tr_status status = r->member->rank == 0 ? TR_OK : tr__rendezvous_read(r, 0, 1, records);
    if (status != TR_OK && status != TR_TIMEOUT) return status; /* the failure names all that are missing */
    return tr__rendezvous_read(r, 0, r->member->world_size, records);
}

tr_status tr__rendezvous_go_on(tr__rendezvous *r, const tr__endpoint_record *mine)
{
    char key[KEY], *expected = strdup(r->registration);
    if (!expected) return tr__fail(TR_NO_MEMORY, "group '%s': no memory", r->member->group);
    replace(r, tr__rendezvous_key(r, "endpoint", mine->rank, key), r->record, "");
    r->record[0] = 0;
    r->used = false;
    r->said = -1;
    tr_status status = skip_used(r);
    if (status == TR_OK) return register_rank(r, mine, expected);
    free(expected);
    return status;
}
