/*
 * Checks on a store of any kind, for tests.
 */
#ifndef TR_TESTS_STORE_CHECKS_H
#define TR_TESTS_STORE_CHECKS_H

#include <trireme/comm.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define OK(expression)                                                                    \
    do {                                                                                  \
        tr_status ok_ = (expression);                                                     \
        if (ok_ != TR_OK) fail_msg("%s: %s", #expression, tr_error_message());            \
    } while (0)
#define FAILS(status_, expression, words)                                                 \
    do {                                                                                  \
        assert_int_equal((expression), status_);                                          \
        if (!strstr(tr_error_message(), words)) fail_msg("'%s' says nothing of '%s'", tr_error_message(), words); \
    } while (0)

tr_store *serve(const char *token); /* on loopback */

void check_value(tr_store *store, const char *key, const void *wanted, size_t bytes);
void check_basics(tr_store *store);
void check_waits(tr_store *store);

/* A thread that sets a key, after a while. */
typedef struct setter {
    tr_store *store;
    const char *key;
    int after_ms;
} setter;
void *set_later(void *arg);

#endif
