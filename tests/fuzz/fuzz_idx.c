/* Data: IDX files, plain and compressed. */
/* fuzz: 20000, soak: 1000000 */
#include "fuzz.h"

#include <trireme/trireme.h>

#include <zlib.h>

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static const uint8_t types[] = {0x08, 0x09, 0x0b, 0x0c, 0x0d, 0x0e};
    static const int sizes[] = {1, 1, 2, 4, 4, 8};
    int type = (int)(number % 6), dims = 1 + (int)(number / 6 % 3);
    size_t count = 4, elements = 1;
    uint8_t plain[FUZZ_SEED / 2] = {0, 0, types[type], (uint8_t)dims};
    for (int i = 0; i < dims; i++) {
        uint8_t size = (uint8_t)(number / 18 % 3 + 1 + (unsigned)i % 2);
        memcpy(plain + count, (uint8_t[]){0, 0, 0, size}, 4);
        count += 4;
        elements *= size;
    }
    for (size_t i = 0; i < elements * (size_t)sizes[type]; i++) plain[count++] = (uint8_t)(number >> i % 24);
    if (number / 54 % 2) {
        memcpy(bytes, plain, count);
        return count;
    }
    z_stream z = {.next_in = plain, .avail_in = (uInt)count, .next_out = bytes, .avail_out = FUZZ_SEED};
    FUZZ_CHECK(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) == Z_OK &&
               deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return FUZZ_SEED - z.avail_out;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    TR_SCOPE;
    char path[40];
    int fd = fuzz_file(bytes, count, path);
    tr_tensor *t = tr_idx_load(path);
    if (tr_status_of(t) == TR_OK)
        FUZZ_CHECK((size_t)tr_numel(t) <= count * 1032 && tr_ndim(t) >= 1 && (tr_numel(t) == 0 || tr_data(t)));
    else
        FUZZ_CHECK(tr_status_of(t) == TR_FORMAT || tr_status_of(t) == TR_UNSUPPORTED ||
                   tr_status_of(t) == TR_NO_MEMORY);
    close(fd);
    return 0;
}
