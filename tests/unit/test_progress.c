/* Progress lines, as they look when the output is no terminal, and that they fit on one that is narrow. */
#include <trireme/tools.h>

#include <math.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static tr_metrics_row row_at(int64_t step)
{
    return (tr_metrics_row){.step = step, .loss = 2, .items_per_s = 24300, .validation_loss = step == 5 ? 2.5 : NAN,
        .validation_accuracy = NAN};
}

static void lines_come_now_and_then(void **state)
{
    (void)state;
    TR_SCOPE;
    FILE *f = tmpfile();
    tr_progress *p = tr_progress_new(f, .interval_s = 3600);
    for (int64_t s = 1; s <= 10; s++) {
        tr_metrics_row row = row_at(s);
        tr_progress_step(p, &row, 10);
        if (s == 7) tr_progress_note(p, "saved");
    }
    tr_progress_end(p);
    char text[1024];
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    /* The first, one with a validation loss, the note, and the last. */
    assert_string_equal(text, "step 1/10  loss 2.0000  24.3k tokens/s\n"
                              "step 5/10  loss 2.0000  validation 2.5000  24.3k tokens/s  1 s left\n"
                              "saved\n"
                              "step 10/10  loss 2.0000  validation 2.5000  24.3k tokens/s\n");
}

/* Of a training that diverges. */
static void long_numbers_have_room(void **state)
{
    (void)state;
    TR_SCOPE;
    FILE *f = tmpfile();
    tr_progress *p = tr_progress_new(f, .item = "sample");
    tr_progress_step(p, &(tr_metrics_row){.step = 1, .loss = -1e300, .items_per_s = 3, .validation_loss = -1e300,
        .validation_accuracy = 0.5}, 1);
    char text[1024];
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_non_null(strstr(text, ".0000  validation -1"));
    assert_non_null(strstr(text, ".0000, 50.00 % right  3.0 samples/s\n"));
}

/* Else the terminal would begin another line, which nothing writes over. */
static void a_line_is_no_wider_than_the_terminal(void **state)
{
    (void)state;
    TR_SCOPE;
    for (int width = 1; width < 90; width += width < 20 ? 1 : 13) {
        int there, here;
        char text[1024];
        assert_int_equal(openpty(&there, &here, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = (unsigned short)width}), 0);
        FILE *f = fdopen(here, "w");
        tr_progress *p = tr_progress_new(f, .ascii = true);
        tr_metrics_row row = row_at(1240);
        tr_progress_step(p, &row, 2000);
        ssize_t n = read(there, text, sizeof text - 1);
        assert_true(n >= 4 && memcmp(text, "\r\033[K", 4) == 0);
        if (n - 4 >= width) fail_msg("%d characters in %d columns: %.*s", (int)n - 4, width, (int)n - 4, text + 4);
        assert_true(n - 4 == width - 1 || width > 40);
        tr_release(p);
        fclose(f);
        close(there);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_come_now_and_then), cmocka_unit_test(long_numbers_have_room),
        cmocka_unit_test(a_line_is_no_wider_than_the_terminal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
