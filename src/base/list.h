/*
 * Lists whose items lead to each other by ->next.
 */
#ifndef TR_BASE_LIST_H
#define TR_BASE_LIST_H

#include <stddef.h>

/* Takes an item out of the list that begins at `first`, if it is there. */
#define TR__UNLINK(first, item)                                         \
    do {                                                                \
        __typeof__(item) *tr__at = &(first);                            \
        while (*tr__at && *tr__at != (item)) tr__at = &(*tr__at)->next; \
        if (*tr__at) *tr__at = (item)->next;                            \
    } while (0)

/* Visits each item. The body may free the item or put it into another list, as ->next is read before; but not free the next. */
#define TR__FOR_EACH(item, first)                                                        \
    for (__typeof__(first) item = (first), item##_next = item ? item->next : NULL; item; \
         item = item##_next, item##_next = item ? item->next : NULL)

#endif
