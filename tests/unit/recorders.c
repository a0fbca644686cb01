#include "recorders.h"

#include "base/clock.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

tr__recorder *open_rank(const char *group, int number, int world, const char *backend, const char *folder)
{
    tr__recorder *r = tr__recorder_open(&(tr__recorder_options){
        .job = "unit", .group = group, .backend = backend, .rank = number, .world_size = world, .folder = folder});
    assert_non_null(r);
    return r;
}

tr_collective call_number(int64_t n)
{
    return (tr_collective){.size = sizeof(tr_collective), .kind = TR_ALL_REDUCE, .count = n, .tag = (int)n, .line = (int)n,
        .timeout_ms = 1000, .file = "tests/train.c"};
}

void make_call(tr__recorder *r, uint64_t sequence)
{
    tr_collective c = call_number((int64_t)sequence);
    tr__recorder_end(r, tr__recorder_start(r, 0, &c, sequence), TR_OK);
}

void read_own(tr__records *records, int count)
{
    assert_int_equal(tr__records_read(getpid(), records), TR_OK);
    assert_int_equal(records->count, count);
}

tr__record_header *open_own(int *descriptor)
{
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0 || !strstr(target, TR__RECORD_MEMFD)) continue;
        *descriptor = open(path, O_RDWR | O_CLOEXEC);
        struct stat s;
        assert_int_equal(fstat(*descriptor, &s), 0);
        void *memory = mmap(NULL, (size_t)s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
        assert_true(memory != MAP_FAILED);
        return memory;
    }
    fail_msg("no record");
    return NULL;
}

void check_lasting(const char *text, const char *words, int64_t began)
{
    double passed = (double)(tr__now_ns() - began) * 1e-9;
    const char *at = strstr(text, words), *number = at ? at + strlen(words) : "";
    char *end;
    double said = strtod(number, &end);
    if (end == number || strncmp(end, " s", 2) != 0 || said < 0 || said > passed + 0.0005)
        fail_msg("nothing of '%s', %.3f s at most, in:\n%s", words, passed, text);
}
