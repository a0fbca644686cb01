/* A real server, in the clear and with a token, under whatever bytes: it goes on serving. The first byte says which, and
 * whether a sound hello comes first. */
/* fuzz: 5000, soak: 500000 */
#include "../store_frames.h"
#include "fuzz.h"

#include "net/store/store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    tr__frame f = {.type = TR__FRAME_GET + number / 4 % 6, .key = "some key", .key_bytes = 8, .amount = number};
    f.timeout_ms = number % 3 ? 0 : 5;
    if (f.type >= TR__FRAME_SET && f.type != TR__FRAME_ADD) f.value = "value", f.value_bytes = number / 32 % 6;
    if (f.type == TR__FRAME_REPLY) /* of which a client sends none */
        f = (tr__frame){.type = TR__FRAME_GATHER, .timeout_ms = f.timeout_ms, .value = "\1\0a\2\0ab\1\0b",
            .value_bytes = number % 2 ? 10 : 3};
    if (number % 7 == 6) f = (tr__frame){.type = TR__FRAME_DELETE, .key = "some key", .key_bytes = 8};
    bytes[0] = (uint8_t)(number & 1 ? 2 : number % 16 ? 0 : 1);
    size_t used = 1 + flatten(&f, bytes + 1);
    return used + flatten(&f, bytes + used);
}

static int call(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Connections stay behind in TIME_WAIT, and there are only so many ports: each comes from another address. */
    static uint32_t calls;
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f010000 + calls++ % 0xfe0000)};
    FUZZ_CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&from, sizeof from) == 0);
    FUZZ_CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static tr_store *stores[2];
    static unsigned calls;
    if (!stores[0]) {
        stores[0] = tr_keep(tr_store_tcp("127.0.0.1", 0, .serve = true, .timeout_ms = 10000));
        stores[1] = tr_keep(tr_store_tcp("127.0.0.1", 0, .serve = true, .token = "secret", .timeout_ms = 10000));
    }
    if (count < 1) return 0;
    uint8_t hello[64], answer[512];
    int fd = call(tr_store_port(stores[bytes[0] & 1]));
    size_t greeting = bytes[0] & 2 ? flatten(&(tr__frame){.type = TR__FRAME_HELLO}, hello) : 0;
    bool sent = send(fd, hello, greeting, MSG_NOSIGNAL) >= 0 && send(fd, bytes + 1, count - 1, MSG_NOSIGNAL) >= 0;
    if (sent) shutdown(fd, SHUT_WR);
    while (recv(fd, answer, sizeof answer, 0) > 0) continue;
    close(fd);
    if (++calls % 64 == 0) {
        TR_SCOPE;
        FUZZ_CHECK(tr_store_set(stores[calls / 64 % 2], "alive", "", 0) == TR_OK);
    }
    return 0;
}
