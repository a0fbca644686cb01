/* Data: NumPy's arrays, and archives of them, stored and compressed. */
/* fuzz: 20000, soak: 1000000 */
#include "fuzz.h"

#include <trireme/train.h>

#include <zlib.h>

static size_t make_array(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static const char *const types[] = {"<f4", ">f4", "<f8", "<f2", ">i8", "<i4", "|u1", "|b1"};
    static const int sizes[] = {4, 4, 8, 2, 8, 4, 1, 1};
    int type = (int)(number % 8), rows = (int)(number / 8 % 4);
    char header[128];
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': (%d, 3), }\n", types[type],
        number / 32 % 2 ? "True" : "False", rows);
    memcpy(bytes, (uint8_t[]){0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)n, 0}, 10);
    memcpy(bytes + 10, header, (size_t)n);
    memset(bytes + 10 + n, 1, (size_t)(rows * 3 * sizes[type]));
    return 10 + (size_t)(n + rows * 3 * sizes[type]);
}

static void put(uint8_t **to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *(*to)++ = (uint8_t)(value >> 8 * i);
}

static size_t squeeze(uint8_t *to, const uint8_t *data, size_t count, bool deflated)
{
    z_stream z = {.next_in = (uint8_t *)data, .avail_in = (uInt)count, .next_out = to, .avail_out = FUZZ_SEED / 2};
    if (!deflated) {
        memcpy(to, data, count);
        return count;
    }
    FUZZ_CHECK(deflateInit2(&z, 6, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK && deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return FUZZ_SEED / 2 - z.avail_out;
}

/* A member's header, or its entry in the directory, as far as they are alike. */
static void put_member(uint8_t **to, const uint8_t *data, size_t count, size_t packed, bool deflated)
{
    put(to, 20, 2);
    put(to, 0, 2);
    put(to, deflated ? 8 : 0, 2);
    put(to, 0, 4);
    put(to, crc32(0, data, (uInt)count), 4);
    put(to, packed, 4);
    put(to, count, 4);
    put(to, 5, 2);
    put(to, 0, 2);
}

/* One member, as NumPy writes it. */
static size_t make_archive(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    uint8_t data[FUZZ_SEED], squeezed[FUZZ_SEED], *to = bytes;
    bool deflated = number % 2;
    size_t count = make_array(number / 2, data), packed = squeeze(squeezed, data, count, deflated);
    put(&to, 0x04034b50, 4);
    put_member(&to, data, count, packed, deflated);
    memcpy(to, "a.npy", 5);
    to += 5;
    memcpy(to, squeezed, packed);
    to += packed;
    size_t directory = (size_t)(to - bytes);
    put(&to, 0x02014b50, 4);
    put(&to, 20, 2);
    put_member(&to, data, count, packed, deflated);
    for (int i = 0; i < 14; i++) put(&to, 0, 1);
    memcpy(to, "a.npy", 5);
    to += 5;
    size_t size = (size_t)(to - bytes) - directory;
    put(&to, 0x06054b50, 4);
    put(&to, 0, 4);
    put(&to, 1, 2);
    put(&to, 1, 2);
    put(&to, size, 4);
    put(&to, directory, 4);
    put(&to, 0, 2);
    return (size_t)(to - bytes);
}

static size_t make_own_archive(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    TR_SCOPE;
    tr_tensor_list *list = tr_list_new();
    FUZZ_CHECK(tr_list_add(list, "w", tr_ones(TR_SHAPE(number / 2 % 8, 3))) == TR_OK);
    char name[] = "/tmp/fuzz-numpy-XXXXXX";
    int fd = mkstemp(name);
    FUZZ_CHECK(fd >= 0 && tr_npz_save(name, list, .compress = number % 2) == TR_OK);
    FILE *file = fopen(name, "rb");
    FUZZ_CHECK(file);
    size_t count = fread(bytes, 1, FUZZ_SEED, file);
    fclose(file);
    close(fd);
    unlink(name);
    return count;
}

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    uint32_t kind = number % 64;
    return (kind == 0 ? make_own_archive : kind < 32 ? make_array : make_archive)(number / 64, bytes);
}

static void check_tensor(const tr_tensor *t, size_t most)
{
    FUZZ_CHECK(tr_status_of(t) == TR_OK && (size_t)tr_numel(t) <= most && tr_data(t));
}

static void check_failure(tr_status status)
{
    FUZZ_CHECK(status == TR_FORMAT || status == TR_UNSUPPORTED || status == TR_NO_MEMORY);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    TR_SCOPE;
    char path[40];
    int fd = fuzz_file(bytes, count, path);
    tr_tensor *t = tr_npy_load(path);
    if (tr_status_of(t) == TR_OK)
        check_tensor(t, count);
    else
        check_failure(tr_status_of(t));
    tr_tensor_list *list = tr_npz_load(path);
    if (tr_status_of(list) != TR_OK) check_failure(tr_status_of(list));
    for (int i = 0; tr_status_of(list) == TR_OK && i < tr_list_count(list); i++)
        check_tensor(tr_list_at(list, i), count * 1032);
    close(fd);
    return 0;
}
