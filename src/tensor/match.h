/* Loading one list of named tensors into another: state dicts, the state of optimizers. */
#ifndef TR_TENSOR_MATCH_H
#define TR_TENSOR_MATCH_H

#include "tensor/list.h"

/* Is name like the pattern, in which a * stands for any run of characters? That run is *run of *length, when there is one. */
bool tr__name_like(const char *name, const char *pattern, const char **run, size_t *length);

/* TR_OK when from has exactly into's names with into's shapes, but for names like those of partial (NULL: none), divided by
 * spaces; otherwise a failure that says how many are missing, left over and of another shape, and names the first few. what:
 * the caller ("tr_load_state_dict"); whose: whom into belongs to ("the module"). report: NULL, or filled in: what loading
 * does, or why it does nothing. */
tr_status tr__list_match(const char *what, const char *whose, const tr_tensor_list *into, const tr_tensor_list *from,
    const char *partial, tr_load_report *report);
/* Copies the values by name, dtype and device converted. What from lacks, or has in another shape, is left alone. */
tr_status tr__list_copy(const tr_tensor_list *into, const tr_tensor_list *from);

#endif
