/* Both ends of a TLS session under bytes from someone without the key. The first byte says which end, and where the bytes
 * are cut in two. Nobody gets through. */
/* fuzz: 3000, soak: 500000 */
#include "fuzz.h"

#include "net/tls.h"

static tr__tls_key *key(const char *token)
{
    tr__tls_key *made = NULL;
    FUZZ_CHECK(tr__tls_key_new(token, &made) == TR_OK);
    return made;
}

/* A handshake's first message from a client with another key, and a server's answer to one. */
size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static tr__tls_key *strange;
    if (!strange) strange = key("another token");
    tr__tls *client = tr__tls_new(strange, TR__TLS_CLIENT), *server = tr__tls_new(strange, TR__TLS_SERVER);
    FUZZ_CHECK(client && server && tr__tls_handshake(client) == 0);
    char *said;
    size_t count = tr__tls_outgoing(client, &said);
    if (number & 1) {
        FUZZ_CHECK(tr__tls_feed(server, said, count));
        tr__tls_handshake(server);
        count = tr__tls_outgoing(server, &said);
    }
    if (count > FUZZ_SEED - 1) count = FUZZ_SEED - 1;
    bytes[0] = (uint8_t)(number & 1 ? number | 1 : number & ~1u);
    memcpy(bytes + 1, said, count);
    tr__tls_free(client);
    tr__tls_free(server);
    return 1 + count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static tr__tls_key *ours;
    if (!ours) ours = key("the job's token");
    if (count < 2) return 0;
    tr__tls *tls = tr__tls_new(ours, bytes[0] & 1 ? TR__TLS_CLIENT : TR__TLS_SERVER);
    FUZZ_CHECK(tls);
    size_t cut = 1 + bytes[0] * (count - 1) / 256;
    char *said, got[64];
    int done = tr__tls_handshake(tls);
    FUZZ_CHECK(tr__tls_feed(tls, bytes + 1, cut - 1));
    if (done == 0) done = tr__tls_handshake(tls);
    FUZZ_CHECK(tr__tls_feed(tls, bytes + cut, count - cut));
    if (done == 0) done = tr__tls_handshake(tls);
    FUZZ_CHECK(done <= 0 && !tr__tls_ready(tls));
    FUZZ_CHECK(tr__tls_read(tls, got, sizeof got) <= 0);
    FUZZ_CHECK(tr__tls_outgoing(tls, &said) <= TR__TLS_HANDSHAKE_MAX);
    tr__tls_free(tls);
    return 0;
}
