/*
 * A fuzzer is one file fuzz_NAME.c with these functions. Built by clang with -DTRIREME_SANITIZE=fuzzer-no-link,address it
 * is a libFuzzer program (tests/fuzz/libfuzzer.c); otherwise a random mutator drives it (tests/fuzz/driver.c), the same
 * inputs for the same seed. Either takes -runs=N and -seed=S, or files with single inputs.
 */
#ifndef TRIREME_FUZZ_H
#define TRIREME_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Tries one input; aborts, or lets a sanitizer speak, when something is wrong. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Writes a sound input, of at most FUZZ_SEED bytes, for mutations to begin with; any number makes one. */
enum { FUZZ_SEED = 1024, FUZZ_MOST = 4096 };
size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED]);

#define FUZZ_CHECK(condition)                                                                 \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);           \
            abort();                                                                          \
        }                                                                                     \
    } while (0)

/* A copy that ends where the bytes end, so that a sanitizer sees a read beyond it. */
static inline uint8_t *fuzz_copy(const uint8_t *bytes, size_t count)
{
    uint8_t *copy = malloc(count ? count : 1);
    FUZZ_CHECK(copy);
    if (count) memcpy(copy, bytes, count);
    return copy;
}

/* The bytes as a file, which is open until it is closed, and its path. */
static inline int fuzz_file(const uint8_t *bytes, size_t count, char path[40])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
    snprintf(path, 40, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
