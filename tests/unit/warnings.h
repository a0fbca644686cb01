/* The library's warnings, kept while a test looks at what is said. Ranks may be threads. */
#ifndef TRIREME_TEST_WARNINGS_H
#define TRIREME_TEST_WARNINGS_H

/* From here on, none so far. */
void warnings_keep(void);
/* The text of those that came since, a line each; valid until the next call of warnings_keep(). */
const char *warnings_kept(void);
/* No more. */
void warnings_end(void);

/* In the test's own thread. */
#define WARNED(words)                                                                                        \
    do {                                                                                                     \
        if (!strstr(warnings_kept(), words)) fail_msg("'%s' says nothing of '%s'", warnings_kept(), words); \
    } while (0)

#endif
