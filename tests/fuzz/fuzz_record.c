/* Flight records of other processes, and what `trireme why` makes of them. The bytes are changes to two sound records: a
 * place, a length and so many bytes, again and again. */
/* fuzz: 20000, soak: 300000 */
#include "fuzz.h"

#include "comm/record/record.h"

enum { WORLD = 2, PEERS = 2, BYTES = sizeof(tr__record_header) + TR__RECORD_ENTRIES * sizeof(tr__record_entry) +
    PEERS * sizeof(tr__record_peer) };

static void make_entry(tr__record_entry *e, int number, int rank)
{
    atomic_init(&e->mark, 2 * (uint64_t)number + 2);
    atomic_init(&e->sequence, (uint64_t)number + 1);
    atomic_init(&e->posted, 1000 * number + 1);
    atomic_init(&e->started, 1000 * number + 2);
    atomic_init(&e->ended, number == 5 + rank ? 0 : 1000 * number + 3);
    atomic_init(&e->call.count, 64);
    atomic_init(&e->call.what, (uint32_t)(number % TR_COLLECTIVE_COUNT));
    atomic_init(&e->call.rank, 1 - rank);
    memcpy(e->file, "train.c", 8);
}

static void make_record(void *memory, int rank)
{
    tr__record_header *h = memory;
    tr__record_entry *entries = (tr__record_entry *)(h + 1);
    tr__record_peer *peers = (tr__record_peer *)(entries + TR__RECORD_ENTRIES);
    memset(memory, 0, BYTES);
    memcpy(h->magic, TR__RECORD_MAGIC, sizeof h->magic);
    h->version = TR__RECORD_VERSION;
    h->header_bytes = sizeof *h, h->entry_bytes = sizeof *entries, h->entry_count = TR__RECORD_ENTRIES;
    h->peer_bytes = sizeof *peers;
    h->pid = 1, h->rank = rank, h->world_size = WORLD;
    strcpy(h->job, "job"), strcpy(h->host, "here"), strcpy(h->group, "world"), strcpy(h->backend, "native");
    atomic_init(&h->state, TR__RECORD_JOINED);
    atomic_init(&h->waits_total, 1 - rank);
    atomic_init(&h->waits[0], 1);
    for (int i = 0; i < 6 + rank; i++) make_entry(&entries[i], i, rank);
    for (int i = 0; i < WORLD; i++) {
        atomic_init(&peers[i].pid, 1);
        strcpy(peers[i].host, "here");
    }
}

/* A change to the header, an entry or a peer. */
size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    size_t used = 0;
    for (uint32_t i = 0; i < 1 + number % 3; i++) {
        uint32_t n = number / 3 + i * 7919, length = 1 + n % 8;
        uint32_t at = n % 4 ? n / 4 % (sizeof(tr__record_header) + 8 * sizeof(tr__record_entry)) : BYTES - 1 - n / 4 % 128;
        bytes[used++] = (uint8_t)(at & 0xff);
        bytes[used++] = (uint8_t)(at >> 8);
        bytes[used++] = (uint8_t)(length | (n & 1) << 7);
        for (uint32_t k = 0; k < length; k++) bytes[used++] = (uint8_t)(n >> k * 4);
    }
    return used;
}

static void apply(const uint8_t *bytes, size_t count, uint8_t *records[WORLD])
{
    for (size_t at = 0; at + 3 <= count;) {
        size_t place = bytes[at] | (size_t)bytes[at + 1] << 8, length = bytes[at + 2] & 0x7f;
        uint8_t *record = records[bytes[at + 2] >> 7];
        at += 3;
        if (length > count - at) length = count - at;
        for (size_t i = 0; i < length; i++) record[(place + i) % BYTES] = bytes[at + i];
        at += length;
    }
}

static void write_all(const tr__records *all)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    FUZZ_CHECK(out);
    for (int i = 0; i < all->count; i++) tr__record_write_text(out, &all->list[i], 1 << 20);
    tr__record_write_trace(out, all, 1 << 20);
    fclose(out);
    free(text);
    if (tr__records_explain(all, NULL, &text) == TR_OK) free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    uint8_t *records[WORLD];
    for (int i = 0; i < WORLD; i++) {
        records[i] = aligned_alloc(64, (BYTES + 63) / 64 * 64);
        FUZZ_CHECK(records[i]);
        make_record(records[i], i);
    }
    apply(bytes, count, records);
    tr__records all = {.list = calloc(WORLD, sizeof *all.list)};
    for (int i = 0; i < WORLD; i++) all.count += tr__record_of(records[i], BYTES, &all.list[all.count]) == TR_OK;
    for (int i = 0; i < all.count; i++) {
        const tr__record *r = &all.list[i];
        FUZZ_CHECK(r->rank >= 0 && r->rank < r->world_size && r->world_size <= PEERS);
        FUZZ_CHECK(r->call_count <= TR__RECORD_ENTRIES && r->waits_count <= TR__RECORD_WAITS);
    }
    write_all(&all);
    tr__records_free(&all);
    for (int i = 0; i < WORLD; i++) free(records[i]);
    return 0;
}
