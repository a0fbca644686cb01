/*
 * Who connects to rank 0 of 3, which joins and joins: to its TCP listener and to its Unix listener. The first byte
 * says which, and whether the right cookie is put into what follows. The rank goes on, and lets nobody in without.
 */
/* fuzz: 2000, soak: 300000 */
#include "fuzz.h"

#include "comm/join/rendezvous.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"
#include "net/store/store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { WORLD = 3, PATIENCE_MS = 5, SHM_BYTES = sizeof(tr__shm_message) };

typedef struct house {
    tr_store *store;
    const char *transport;
    pthread_t thread;
} house;

/* Half of them know the cookie. */
size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    bytes[0] = (uint8_t)number;
    int rank = 1 + (int)(number / 4 % 3), channel = (int)(number / 12 % 4);
    if (number & 1) {
        tr__hello hello = {.magic = TR__NETWORK_MAGIC, .version = TR__NETWORK_VERSION, .rank = rank,
            .channel = (int16_t)channel, .group = TR__FIRST_GROUP};
        strcpy(hello.address, "127.0.0.1:9");
        memcpy(bytes + 1, &hello, sizeof hello);
        return 1 + sizeof hello;
    }
    tr__shm_message hello = {.magic = TR__SHM_MAGIC, .type = TR__SHM_HELLO, .rank = rank, .id = number, .bytes = number};
    memcpy(bytes + 1, &hello, FUZZ_SEED - 1); /* its last part, a text, is empty */
    return FUZZ_SEED;
}

static void *join_and_join(void *arg)
{
    const house *h = arg;
    for (;;) {
        TR_SCOPE;
        tr_group *g = tr_join(.store = h->store, .rank = 0, .world_size = WORLD, .transport = h->transport,
            .timeout_ms = 60000);
        FUZZ_CHECK(tr_status_of(g) != TR_OK && tr_error_message()[0]);
    }
    return NULL;
}

static void read_record(const house *h, tr__endpoint_record *record)
{
    for (;;) {
        void *text;
        size_t bytes;
        FUZZ_CHECK(tr_store_get(h->store, "group/world/endpoint/1/0", &text, &bytes) == TR_OK);
        bool published = bytes > 0; /* else it was withdrawn: the next try publishes another */
        if (published) FUZZ_CHECK(tr__endpoint_record_read(text, record) == TR_OK);
        free(text);
        if (published) return;
        usleep(100);
    }
}

/* The other ranks have published their records, and never come. */
static void open_house(house *h, const char *transport)
{
    *h = (house){.store = tr_keep(tr_store_memory()), .transport = transport};
    tr__member member = {.group = "world", .world_size = WORLD, .store = h->store};
    tr__rendezvous meeting = {.member = &member, .generation = 1};
    tr__endpoint_record first;
    FUZZ_CHECK(pthread_create(&h->thread, NULL, join_and_join, h) == 0);
    read_record(h, &first);
    for (member.rank = 1; member.rank < WORLD; member.rank++) {
        tr__endpoint_record record;
        tr__endpoint_record_here(&member, &record);
        record.table = first.table;
        strcpy(record.address, "nowhere"), strcpy(record.tcp_address, "127.0.0.1:9");
        memset(record.cookie, '0', TR__COOKIE_TEXT - 1), memset(record.tcp_cookie, '0', TR__COOKIE_TEXT - 1);
        FUZZ_CHECK(tr__rendezvous_publish(&meeting, &record) == TR_OK);
    }
}

static int connect_tcp(const tr__endpoint_record *record)
{
    static uint32_t calls; /* each from another address, as connections stay behind in TIME_WAIT */
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f010000 + calls++ % 0xfe0000)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strrchr(record->tcp_address, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static int connect_unix(const tr__endpoint_record *record)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(record->address);
    memcpy(to.sun_path + 1, record->address, length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) == 0) return fd;
    close(fd);
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static house houses[2];
    static uint8_t message[FUZZ_MOST + SHM_BYTES];
    if (!houses[0].store) {
        open_house(&houses[0], "shm");
        open_house(&houses[1], "tcp");
    }
    if (count < 1 || count > FUZZ_MOST) return 0;
    bool tcp = bytes[0] & 1, knows = bytes[0] & 2;
    tr__endpoint_record record;
    read_record(&houses[tcp], &record);
    memset(message, 0, sizeof message);
    memcpy(message, bytes + 1, count - 1);
    size_t length = tcp || count - 1 != FUZZ_SEED - 1 ? count - 1 : SHM_BYTES; /* with the text that a seed leaves out */
    if (knows && tcp) memcpy(message + offsetof(tr__hello, cookie), record.tcp_cookie, sizeof record.tcp_cookie);
    if (knows && !tcp) memcpy(message + offsetof(tr__shm_message, cookie), record.cookie, sizeof record.cookie);
    int fd = tcp ? connect_tcp(&record) : connect_unix(&record);
    if (fd < 0) return 0; /* it has just closed that listener */
    if (send(fd, message, length, MSG_NOSIGNAL) >= 0) {
        char answer[SHM_BYTES];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        shutdown(fd, SHUT_WR);
        ssize_t got = poll(&p, 1, PATIENCE_MS) > 0 ? recv(fd, answer, sizeof answer, MSG_DONTWAIT) : 0;
        FUZZ_CHECK(knows || got <= 0);
    }
    close(fd);
    return 0;
}
