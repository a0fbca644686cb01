/* Drives a fuzzer where libFuzzer is not at hand: sound inputs, and the same with random changes. */
#include "fuzz.h"

typedef struct driver {
    uint64_t random;
    uint8_t bytes[FUZZ_MOST];
    size_t count;
} driver;

/* splitmix64 */
static uint32_t draw(driver *d, size_t below)
{
    uint64_t z = d->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % (below ? below : 1));
}

/* Numbers at which lengths and counts break. */
static uint8_t edge(driver *d)
{
    static const uint8_t edges[] = {0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 0x10, 0x20, 0x40};
    return edges[draw(d, sizeof edges)];
}

static void insert(driver *d, size_t at, const uint8_t *bytes, size_t count)
{
    if (count > sizeof d->bytes - d->count) return;
    memmove(d->bytes + at + count, d->bytes + at, d->count - at);
    memmove(d->bytes + at, bytes, count);
    d->count += count;
}

static void change(driver *d)
{
    uint8_t other[FUZZ_SEED];
    size_t at = draw(d, d->count), many = 1 + draw(d, 16);
    switch (d->count ? draw(d, 8) : 7) {
    case 0: d->bytes[at] ^= (uint8_t)(1u << draw(d, 8)); break;
    case 1: d->bytes[at] = edge(d); break;
    case 2: d->bytes[at] = (uint8_t)draw(d, 256); break;
    case 3: d->count = at; break;
    case 4: /* a few bytes go */
        if (many > d->count - at) many = d->count - at;
        memmove(d->bytes + at, d->bytes + at + many, d->count - at - many);
        d->count -= many;
        break;
    case 5: /* or come twice */
        if (many > d->count - at) many = d->count - at;
        memcpy(other, d->bytes + at, many);
        insert(d, at, other, many);
        break;
    case 6:
        for (size_t i = at; i < d->count && i < at + 4; i++) d->bytes[i] = edge(d);
        break;
    default: insert(d, d->count, other, fuzz_seed(draw(d, UINT32_MAX), other)); break;
    }
}

static void run_one(driver *d)
{
    d->count = fuzz_seed(draw(d, UINT32_MAX), d->bytes);
    if (draw(d, 16) == 0)
        for (size_t i = 0; i < d->count; i++) d->bytes[i] = (uint8_t)draw(d, 256);
    for (uint32_t changes = draw(d, 6); changes > 0; changes--) change(d);
    uint8_t *copy = fuzz_copy(d->bytes, d->count);
    LLVMFuzzerTestOneInput(copy, d->count);
    free(copy);
}

static int run_file(const char *name)
{
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(name, "rb");
    if (!file) {
        perror(name);
        return 1;
    }
    size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return LLVMFuzzerTestOneInput(bytes, count);
}

int main(int argc, char **argv)
{
    static driver d;
    unsigned long long runs = 100000, seed = 1;
    int files = 0;
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-runs=%llu", &runs) == 1 || sscanf(argv[i], "-seed=%llu", &seed) == 1) continue;
        files++;
        if (run_file(argv[i]) != 0) return 1;
    }
    if (files) return 0;
    d.random = seed;
    for (unsigned long long run = 0; run < runs; run++) run_one(&d);
    printf("%llu inputs, seed %llu: no finding\n", runs, seed);
    return 0;
}
