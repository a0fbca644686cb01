/* Charts: they fit where they are told to, hold what they should, and survive any data. */
#include <trireme/tools.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { points = 500 };

static double x[points], y[points];
static const double vx[] = {100, 200, 300, 400, 500}, vy[] = {2.9, 2.4, 2.2, 2.1, 2.05};
static const tr_series both[] = {{"loss", x, y, points}, {"validation loss", vx, vy, 5}};

static int make_curve(void **state)
{
    (void)state;
    for (int i = 0; i < points; i++) {
        x[i] = i + 1;
        y[i] = 2 + 2.5 * exp(-i / 80.0);
    }
    return 0;
}

/* Characters of the longest line, and the number of lines. */
static void measure(const char *text, int *width, int *lines)
{
    int at = 0;
    *width = *lines = 0;
    for (; *text; text++) {
        if (*text == '\n') {
            ++*lines;
            at = 0;
        } else if (((unsigned char)*text & 0xc0) != 0x80 && ++at > *width) {
            *width = at;
        }
    }
}

static void text_fits_its_size(void **state)
{
    (void)state;
    static char text[200000];
    for (int width = 30; width <= 200; width += 17) {
        for (int height = 8; height <= 50; height += 7) {
            for (int ascii = 0; ascii < 2; ascii++) {
                int w, h;
                size_t length = tr_chart_text(both, 2, width, height, ascii, text, sizeof text);
                assert_int_equal(length, strlen(text));
                measure(text, &w, &h);
                assert_true(w <= width);
                assert_int_equal(h, height);
                for (const char *c = text; *c && ascii; c++) assert_true((unsigned char)*c < 128);
            }
        }
    }
}

static void text_is_what_it_should_be(void **state)
{
    (void)state;
    static const double few_x[] = {0, 1, 2, 3, 4}, few_y[] = {4, 3, 2, 1, 0}, mark_x[] = {4}, mark_y[] = {4};
    const tr_series series[] = {{"loss", few_x, few_y, 5}, {"other", mark_x, mark_y, 1}};
    char text[2048];
    tr_chart_text(series, 2, 24, 8, true, text, sizeof text);
    assert_int_equal(strncmp(text, "4 +*", 4), 0);
    assert_non_null(strstr(text, "** loss   o other"));
    char *first_line_end = strchr(text, '\n');
    assert_int_equal(first_line_end[-1], 'o');
}

static void text_is_cut_as_by_snprintf(void **state)
{
    (void)state;
    char small[16], none = 'x';
    size_t whole = tr_chart_text(both, 2, 60, 12, false, small, sizeof small);
    assert_true(whole > sizeof small);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_int_equal(tr_chart_text(both, 2, 60, 12, false, &none, 0), whole);
    assert_int_equal(none, 'x');
}

static void odd_data_is_drawn_or_left_out(void **state)
{
    (void)state;
    static const double nan2[] = {NAN, NAN}, one[] = {1}, same[] = {3, 3, 3}, steps[] = {1, 2, 3};
    static const double mixed[] = {1, NAN, INFINITY}, huge[] = {-1e308, 0, 1e308}, tiny[] = {1e-300, 2e-300, 0};
    static const double zero[] = {0, 0, 0}, large[] = {1e15, 2e15, 3e15}, close_by[] = {1, 1 + 1e-15, 1 - 1e-15};
    const tr_series cases[] = {
        {"none", one, one, 0},
        {"nan", nan2, nan2, 2},
        {"one", one, one, 1},
        {"same", steps, same, 3},
        {"mixed", steps, mixed, 3},
        {"huge", steps, huge, 3},
        {"tiny", steps, tiny, 3},
        {"zero", steps, zero, 3},
        {"large", large, large, 3},
        {"close", steps, close_by, 3},
        {"x alike", same, steps, 3},
    };
    char folder[] = "/tmp/trireme-chart-XXXXXX", path[64], text[8192];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/c.svg", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(tr_chart_text(&cases[i], 1, 40, 10, i % 2, text, sizeof text) > 0);
        assert_int_equal(tr_chart_svg(path, "odd", &cases[i], 1), TR_OK);
    }
    assert_true(tr_chart_text(NULL, 0, 40, 10, true, text, sizeof text) > 0);
    assert_true(tr_chart_text(both, 2, -5, -5, true, text, sizeof text) > 0);
    unlink(path);
    rmdir(folder);
}

static void svg_is_well_formed(void **state)
{
    (void)state;
    char folder[] = "/tmp/trireme-chart-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/c.svg", folder);
    assert_int_equal(tr_chart_svg(path, "<a> & b", both, 2), TR_OK);
    static char text[100000];
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_non_null(strstr(text, "&lt;a&gt; &amp; b"));
    assert_non_null(strstr(text, ">validation loss</text>"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    assert_string_equal(text + n - 7, "</svg>\n");
    assert_int_equal(tr_chart_svg("/nowhere/c.svg", "x", both, 2), TR_IO);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_fits_its_size),
        cmocka_unit_test(text_is_what_it_should_be),
        cmocka_unit_test(text_is_cut_as_by_snprintf),
        cmocka_unit_test(odd_data_is_drawn_or_left_out),
        cmocka_unit_test(svg_is_well_formed),
    };
    return cmocka_run_group_tests(tests, make_curve, NULL);
}
