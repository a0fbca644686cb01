/* Is a sanitizer of addresses or threads at work? They keep memory that was freed, and need more of it themselves. */
#ifndef TRIREME_TEST_SANITIZED_H
#define TRIREME_TEST_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

/* ThreadSanitizer, under which more threads than processors take minutes. */
#if defined(__SANITIZE_THREAD__)
#define THREADS_SANITIZED 1
#elif defined(__has_feature)
#define THREADS_SANITIZED __has_feature(thread_sanitizer)
#else
#define THREADS_SANITIZED 0
#endif

#endif
