/* Which ranks hold the other parts of a parameter, or of the model that it is of. */
#ifndef TR_PARALLEL_SPREAD_H
#define TR_PARALLEL_SPREAD_H

#include "ops/node.h"

#include <trireme/parallel.h>

/* A spread over a group, at the head of an object of the type, whose destroy() calls tr__spread_destroy(). */
tr__spread *tr__spread_new(const tr__type *type, tr_group *group);
void tr__spread_destroy(void *spread);
/* Notes the group at a place in a tr__leaf, instead of what is there; in a world of one nothing. */
tr_status tr__spread_over(tr__spread **place, tr_group *group);

#endif
