#include "store_checks.h"

#include "base/clock.h"
#include "net/store/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

void check_value(tr_store *store, const char *key, const void *wanted, size_t bytes)
{
    void *value;
    size_t got;
    OK(tr_store_get(store, key, &value, &got));
    assert_int_equal(got, bytes);
    assert_memory_equal(value, wanted, bytes);
    assert_int_equal(((char *)value)[got], 0);
    free(value);
}

void check_basics(tr_store *store)
{
    OK(tr_store_set(store, "a", "one", 3));
    check_value(store, "a", "one", 3);
    OK(tr_store_set(store, "a", "\0\xff two", 6));
    check_value(store, "a", "\0\xff two", 6);
    OK(tr_store_set(store, "empty", NULL, 0));
    check_value(store, "empty", "", 0);

    int64_t sum;
    OK(tr_store_add(store, "counter", 5, &sum));
    assert_int_equal(sum, 5);
    OK(tr_store_add(store, "counter", -7, &sum));
    assert_int_equal(sum, -2);
    OK(tr_store_add(store, "counter", 0, NULL));
    check_value(store, "counter", "-2", 2);
    FAILS(TR_FORMAT, tr_store_add(store, "a", 1, &sum), "a' holds no number");
    OK(tr_store_set(store, "edge", "9223372036854775807", 19));
    FAILS(TR_FORMAT, tr_store_add(store, "edge", 1, &sum), "64 bits");
    check_value(store, "edge", "9223372036854775807", 19);
}

void *set_later(void *arg)
{
    setter *s = arg;
    usleep((unsigned)s->after_ms * 1000);
    TR_CHECK(tr_store_set(s->store, s->key, "came", 4)); /* cmocka's own checks are for the main thread */
    return NULL;
}

void check_waits(tr_store *store)
{
    int64_t began = tr__now_ns();
    FAILS(TR_TIMEOUT, tr_store_wait(store, "never", 30), "never' within 0.03 s");
    assert_true(tr__now_ns() - began >= 29000000);
    FAILS(TR_TIMEOUT, tr__store_get(store, "never", 0, NULL, NULL), "never");
    FAILS(TR_INVALID, tr_store_wait(store, "never", -1), "negative");
    pthread_t thread;
    setter s = {store, "late", 50};
    pthread_create(&thread, NULL, set_later, &s);
    OK(tr_store_wait(store, "late", 20000)); /* the same store object, while this thread waits on it */
    check_value(store, "late", "came", 4);
    pthread_join(thread, NULL);
}

tr_store *serve(const char *token)
{
    tr_store *store = tr_store_tcp("127.0.0.1", 0, .serve = true, .token = token, .timeout_ms = 20000);
    OK(tr_status_of(store));
    return store;
}
