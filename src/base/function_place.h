/* Where functions are, in words that hold in another process of the same program: in which object, at which offset. */
#ifndef TR_BASE_FUNCTION_PLACE_H
#define TR_BASE_FUNCTION_PLACE_H

#include <trireme/base.h>

#include <limits.h>

/* Any function; cast to what it is before it is called. */
typedef void (*tr__any_function)(void);

typedef struct tr__function_place {
    char object[PATH_MAX]; /* the path of a library; "": the program itself */
    uint64_t offset;       /* from where the object is loaded */
    uint64_t layout;       /* a hash of the object's segments, which another build of it has other ones of */
} tr__function_place;

tr_status tr__place_of(tr__any_function function, tr__function_place *out);
/* The function at a place; a library that this process has not loaded is loaded. */
tr_status tr__place_function(const tr__function_place *place, tr__any_function *function);

#endif
