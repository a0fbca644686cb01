/* Frames of the TCP transport, their signatures as text, records of ranks, and the table of algorithms. The first byte says
 * which. */
#include "fuzz.h"

#include "comm/algo/choice.h"
#include "comm/join/rendezvous.h"
#include "comm/transport/tcp.h"

static const char *const texts[] = {
    "trireme-endpoint 5 version 0.1.0 rank 1 of 2 pid 42 in 4026531836 host here machine 0f/4026531840 address trireme-0f cookie "
    "0123456789abcdef0123456789abcdef tcp 10.0.0.1:4000 cookie 0123456789abcdef0123456789abcdef table 9f tls 1",
    "all_reduce ranks 2-16 bytes 0-1M direct; broadcast ranks 2- bytes 64K- tree # large ones\n"
    "network latency_ns 20000 overhead_ns 2000 mbytes_per_s 1250 copy_mbytes_per_s 0 fold_mbytes_per_s 10000\n",
};

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    bytes[0] = (uint8_t)(number % 3);
    if (number % 3) {
        const char *text = texts[number % 3 - 1];
        memcpy(bytes + 1, text, strlen(text));
        return 1 + strlen(text);
    }
    tr__signature s = {.sequence = number, .kind = number / 4 % TR_COLLECTIVE_COUNT, .count = number};
    s.dtype = number / 64 % TR_DTYPE_COUNT;
    strcpy(s.file, "train.c");
    tr__tcp_frame f = tr__tcp_frame_of(&s, TR__TCP_DATA + number / 3 % 4, number % 2048);
    memcpy(bytes + 1, &f, sizeof f);
    return 1 + sizeof f;
}

static void try_frame(const uint8_t *bytes, size_t count)
{
    tr__tcp_frame f;
    tr__signature call;
    char text[TR__CALL_TEXT];
    if (count < sizeof f) return;
    memcpy(&f, bytes, sizeof f);
    if (!tr__tcp_read_frame(&f, &call)) return;
    FUZZ_CHECK(call.kind < TR_COLLECTIVE_COUNT && call.dtype < TR_DTYPE_COUNT && call.op < TR_REDUCE_OP_COUNT);
    FUZZ_CHECK(strlen(call.file) < sizeof call.file);
    FUZZ_CHECK(strlen(tr__signature_text(&call, text)) < sizeof text);
}

static void try_record(const char *text)
{
    tr__endpoint_record record;
    if (tr__endpoint_record_read(text, &record) == TR_OK) FUZZ_CHECK(strlen(record.cookie) == TR__COOKIE_TEXT - 1);
}

/* A table that is taken has bounds, and is printed as it can be read again. */
static void try_table(const char *text)
{
    tr__choice_table *table = calloc(2, sizeof *table), *again = table + 1;
    char *printed = malloc(2 * TR__CHOICES_TEXT), *printed_again = printed + TR__CHOICES_TEXT;
    FUZZ_CHECK(table && printed);
    if (tr__choice_read(table, text, "file") == TR_OK) {
        FUZZ_CHECK(table->count <= TR__CHOICES_MOST && table->has_network);
        FUZZ_CHECK(tr__choice_read(again, tr__choice_text(table, printed), NULL) == TR_OK);
        FUZZ_CHECK(strcmp(tr__choice_text(again, printed_again), printed) == 0);
        FUZZ_CHECK(tr__choice_digest(again) == tr__choice_digest(table));
    }
    free(table);
    free(printed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 1) return 0;
    if (bytes[0] % 3 == 0) {
        try_frame(bytes + 1, count - 1);
        return 0;
    }
    char *text = (char *)fuzz_copy(bytes, count);
    memmove(text, text + 1, count - 1);
    text[count - 1] = 0;
    if (bytes[0] % 3 == 1) try_record(text);
    else try_table(text);
    free(text);
    return 0;
}
