/* The version has one home, base.h; the library and the build's own record must agree with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <trireme/base.h>

#include "trireme_config.h"

static void test_library_and_header_agree(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", TR_VERSION_MAJOR, TR_VERSION_MINOR, TR_VERSION_PATCH);
    assert_string_equal(tr_version(), text);
    assert_string_equal(TR__VERSION, text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_library_and_header_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
