/* Loading one list of named tensors into another: state dicts, the state of optimizers. */
#ifndef TR_TENSOR_MATCH_H
#define TR_TENSOR_MATCH_H

#include "tensor/list.h"

/* TR_OK when from has exactly into's names with into's shapes; otherwise a failure that says how many are missing, left
 * over and of another shape, and names the first few. what: the caller ("tr_load_state_dict"); whose: whom into belongs
 * to ("the module"). */
tr_status tr__list_match(const char *what, const char *whose, const tr_tensor_list *into, const tr_tensor_list *from);
/* Copies the values by name, dtype and device converted. They must match. */
tr_status tr__list_copy(const tr_tensor_list *into, const tr_tensor_list *from);

#endif
