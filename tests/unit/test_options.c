/* The option parser of the command: values and their limits, operands, messages, help. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "options.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct values {
    bool flag;
    int integer;
    double number;
    const char *text, *choice;
    tr__sizes sizes;
} got;

static char words[16][256]; /* a copy of the arguments, which parsing may move about */
static char *arguments[17];
static char messages[4096]; /* what went to stderr, or stdout */

/* Runs body with a stream redirected, and keeps what was written to it in messages. */
static int parse_into(FILE *stream, const tr__syntax *syntax, int *count)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stream);
    int old = dup(fileno(stream));
    dup2(fileno(file), fileno(stream));
    int status = tr__parse(syntax, count, arguments);
    fflush(stream);
    dup2(old, fileno(stream));
    close(old);
    rewind(file);
    messages[fread(messages, 1, sizeof messages - 1, file)] = '\0';
    fclose(file);
    return status;
}

static int parse(const char *line, bool stop_at_operand, bool needs_text)
{
    const tr__option options[] = {
        {"flag", 'f', NULL, "a flag", TR__FLAG(&got.flag)},
        {"integer", 'i', "N", "a whole number", TR__INTEGER(&got.integer, -5, 100)},
        {"number", 0, "X", "a number", TR__NUMBER(&got.number, 0, HUGE_VAL)},
        {"text", 't', "TEXT", "a text", TR__TEXT(&got.text), .required = needs_text},
        {"choice", 0, "NAME", "one of", TR__CHOICE(&got.choice, "small", "large")},
        {"sizes", 0, "LIST", "some sizes", TR__SIZES(&got.sizes)},
        {0},
    };
    const tr__syntax syntax = {"test", "FILE…", "Tests.", options, .operands = {0, 2}, .stop_at_operand = stop_at_operand};
    got = (struct values){.integer = 7, .choice = "small"};
    int count = 0;
    strcpy(words[count], "test");
    for (const char *at = line; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        snprintf(words[++count], sizeof *words, "%.*s", (int)length, at);
        at += length;
    }
    count++;
    for (int i = 0; i < count; i++) arguments[i] = words[i];
    arguments[count] = NULL;
    int status = parse_into(strstr(line, "-h") ? stdout : stderr, &syntax, &count);
    return status < 0 ? 1000 + count : status; /* 1000 + operands: go on */
}

#define assert_goes_on(line, operands) assert_int_equal(parse(line, false, false), 1000 + (operands))
#define assert_wrong(line, message)                          \
    do {                                                     \
        assert_int_equal(parse(line, false, false), 2);      \
        assert_non_null(strstr(messages, "trireme test: " message "\n")); \
    } while (0)

static void test_values(void **state)
{
    (void)state;
    assert_goes_on("", 0);
    assert_int_equal(got.integer, 7);
    assert_goes_on("-f --integer 12 --number=2.5e-3 --text=a=b", 0);
    assert_true(got.flag);
    assert_int_equal(got.integer, 12);
    assert_true(got.number == 2.5e-3);
    assert_string_equal(got.text, "a=b");
    assert_goes_on("-i-5 -t -x --choice large", 0);
    assert_int_equal(got.integer, -5);
    assert_string_equal(got.text, "-x");
    assert_string_equal(got.choice, "large");
}

static void test_sizes(void **state)
{
    (void)state;
    assert_goes_on("--sizes 8,64k,4M,1G", 0);
    assert_int_equal(got.sizes.count, 4);
    assert_int_equal(got.sizes.bytes[0], 8);
    assert_int_equal(got.sizes.bytes[1], 64 << 10);
    assert_int_equal(got.sizes.bytes[3], 1 << 30);
    const char *const wrong[] = {"", ",", "8,", "8,,9", "8x", "-1", "0", "8 9", "9999999999G", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[64];
        snprintf(line, sizeof line, "--sizes=%s", wrong[i]);
        if (strcmp(wrong[i], "8 9")) assert_int_equal(parse(line, false, false), 2);
        else assert_int_equal(parse(line, false, false), 1001);
    }
    char many[256] = "--sizes=1";
    for (int i = 0; i < 64; i++) strcat(many, ",1");
    assert_int_equal(parse(many, false, false), 2);
}

static void test_bad_values(void **state)
{
    (void)state;
    assert_wrong("--integer 101", "--integer takes a whole number from -5 to 100, not \"101\"");
    assert_wrong("-i 99999999999999999999", "-i takes a whole number from -5 to 100, not \"99999999999999999999\"");
    assert_wrong("--integer=1.5", "--integer takes a whole number from -5 to 100, not \"1.5\"");
    assert_wrong("--integer=", "--integer takes a whole number from -5 to 100, not \"\"");
    assert_wrong("--number -1", "--number takes a number of 0 or more, not \"-1\"");
    assert_wrong("--number nan", "--number takes a number of 0 or more, not \"nan\"");
    assert_wrong("--number 3x", "--number takes a number of 0 or more, not \"3x\"");
    assert_wrong("--choice big", "--choice takes one of small, large, not \"big\"");
    assert_wrong("--text=", "--text takes a text that is not empty, not \"\"");
    assert_wrong("--flag=yes", "--flag takes no value");
    assert_wrong("-fx", "-f takes no value");
    assert_wrong("--integer", "--integer needs a value: --integer N");
    assert_wrong("--text --flag", "--text needs a value: --text TEXT");
}

static void test_unknown_options(void **state)
{
    (void)state;
    assert_wrong("--txet", "unknown option --txet: did you mean --text?");
    assert_wrong("--int 3", "unknown option --int: did you mean --integer?");
    assert_wrong("--sizs=8", "unknown option --sizs: did you mean --sizes?");
    assert_wrong("--elephant", "unknown option --elephant");
    assert_wrong("-x", "unknown option -x");
    char longest[200] = "--";
    memset(longest + 2, 'a', sizeof longest - 3);
    assert_int_equal(parse(longest, false, false), 2);
}

static void test_operands(void **state)
{
    (void)state;
    assert_goes_on("one -f two", 2);
    assert_string_equal(arguments[0], "one");
    assert_string_equal(arguments[1], "two");
    assert_null(arguments[2]);
    assert_true(got.flag);
    assert_goes_on("- -- -f", 2);
    assert_string_equal(arguments[1], "-f");
    assert_false(got.flag);
    assert_wrong("one two three", "unexpected \"three\"");

    assert_int_equal(parse("-f program -i", true, false), 1002);
    assert_string_equal(arguments[0], "program");
    assert_string_equal(arguments[1], "-i");
    assert_int_equal(parse("-- -f program", true, false), 1002);
    assert_string_equal(arguments[0], "-f");
}

static void test_required(void **state)
{
    (void)state;
    assert_int_equal(parse("-f", false, true), 2);
    assert_non_null(strstr(messages, "trireme test: --text TEXT is missing: a text\nTry: trireme test --help\n"));
    assert_int_equal(parse("-t x", false, true), 1000);
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(parse("--help", false, true), 0);
    assert_non_null(strstr(messages, "Usage: trireme test [OPTION…] FILE…\n\nTests.\n"));
    assert_non_null(strstr(messages, "\n  -i, --integer N           a whole number (default 7)\n"));
    assert_non_null(strstr(messages, "\n      --choice NAME         one of: small, large (default small)\n"));
    assert_non_null(strstr(messages, "\n  -t, --text TEXT           a text (required)\n"));
    assert_non_null(strstr(messages, "\n  -h, --help                print this and exit\n"));
    assert_int_equal(parse("-f -h --bad", false, false), 0);
}

static void test_nearest(void **state)
{
    (void)state;
    const char *const commands[] = {"run", "train", "sample", "bench", "doctor", NULL};
    assert_string_equal(tr__nearest("rnu", commands), "run");
    assert_string_equal(tr__nearest("trian", commands), "train");
    assert_string_equal(tr__nearest("samples", commands), "sample");
    assert_string_equal(tr__nearest("doc", commands), "doctor");
    assert_null(tr__nearest("install", commands));
    assert_null(tr__nearest("", commands));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_unknown_options),
        cmocka_unit_test(test_operands),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
