#include "tensor/list.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void destroy(void *self)
{
    tr_tensor_list *list = self;
    for (int i = 0; i < list->count; i++) tr__unref(list->entries[i].tensor);
    for (int i = 0; i < list->keys.count; i++) free(list->values[i]);
    tr__names_free(&list->names);
    tr__names_free(&list->keys);
    free(list->entries);
    free(list->values);
}

const tr__type tr__list_type = {"tensor list", sizeof(tr_tensor_list), destroy};

tr_tensor_list *tr_list_new(void)
{
    return tr__object_new(&tr__list_type);
}

/* Nothing to look at: in error, or NULL. */
static bool none(const tr_tensor_list *list)
{
    return !list || list->object.error;
}

static tr_status no_memory(void)
{
    return tr__fail(TR_NO_MEMORY, "out of memory");
}

tr_status tr_list_add(tr_tensor_list *list, const char *name, tr_tensor *tensor)
{
    if (!name) return tr__fail(TR_INVALID, "list_add: the name is NULL");
    if (!list) return tr__fail(TR_INVALID, "no list to add \"%s\" to", name);
    TR__TRY(tr_status_of(list));
    TR__TRY(tr_status_of(tensor));
    if (!tensor) return tr__fail(TR_INVALID, "no tensor to add to a list as \"%s\"", name);
    if (tr_list_find(list, name)) return tr__fail(TR_INVALID, "a list has two tensors named \"%s\"", name);
    if (!tr__grow(&list->entries, (size_t)list->count, &list->room, sizeof *list->entries)) return no_memory();
    TR__TRY(tr__names_add(&list->names, name));
    list->entries[list->count] = (tr__list_entry){list->names.text[list->count], tr__ref(tensor)};
    list->count++;
    return TR_OK;
}

/* In memory of its own; NULL: there is none. */
static char *prefixed(const char *prefix, const char *name)
{
    size_t bytes = strlen(prefix) + strlen(name) + 1;
    char *text = malloc(bytes);
    if (text) snprintf(text, bytes, "%s%s", prefix, name);
    return text;
}

/* Looks at all names before it adds one, so that a name that is there already leaves the list as it was. */
tr_status tr_list_merge(tr_tensor_list *list, const char *prefix, const tr_tensor_list *other)
{
    if (!list || !prefix || !other)
        return tr__fail(TR_INVALID, "list_merge: %s is NULL", !list ? "the list" : !prefix ? "the prefix" : "the other list");
    TR__TRY(tr_status_of(list));
    TR__TRY(tr_status_of(other));
    int adding = other->count; /* other may be the list itself */
    tr_status status = TR_OK;
    for (int i = 0; i < adding && status == TR_OK; i++) {
        char *name = prefixed(prefix, other->entries[i].name);
        if (name && tr_list_find(list, name)) status = tr__fail(TR_INVALID, "list_merge: the list has \"%s\" already", name);
        free(name);
    }
    for (int i = 0; i < adding && status == TR_OK; i++) {
        char *name = prefixed(prefix, other->entries[i].name);
        status = name ? tr_list_add(list, name, other->entries[i].tensor) : no_memory();
        free(name);
    }
    return status;
}

tr_tensor_list *tr_list_part(const tr_tensor_list *list, const char *prefix)
{
    if (!list || !prefix)
        return tr__object_fail(&tr__list_type, TR_INVALID, "list_part: %s is NULL", list ? "the prefix" : "the list");
    if (tr_status_of(list) != TR_OK) return tr__object_failed(&tr__list_type);
    tr_tensor_list *part = tr_list_new();
    if (tr_status_of(part) != TR_OK) return part;
    size_t bytes = strlen(prefix);
    for (int i = 0; i < list->count; i++) {
        const tr__list_entry *entry = &list->entries[i];
        if (strncmp(entry->name, prefix, bytes) != 0) continue;
        if (tr_list_add(part, entry->name + bytes, entry->tensor) != TR_OK) return tr__object_failed(&tr__list_type);
    }
    if (part->count == 0)
        return tr__object_fail(&tr__list_type, TR_NOT_FOUND, "list_part: none of %d names begins with \"%s\"", list->count, prefix);
    return part;
}

int tr_list_count(const tr_tensor_list *list)
{
    return none(list) ? 0 : list->count;
}

tr_tensor *tr_list_at(const tr_tensor_list *list, int i)
{
    return i >= 0 && i < tr_list_count(list) ? list->entries[i].tensor : NULL;
}

const char *tr_list_name(const tr_tensor_list *list, int i)
{
    return i >= 0 && i < tr_list_count(list) ? list->entries[i].name : NULL;
}

tr_tensor *tr_list_find(const tr_tensor_list *list, const char *name)
{
    return none(list) ? NULL : tr_list_at(list, tr__names_find(&list->names, name));
}

int64_t tr_list_numel(const tr_tensor_list *list)
{
    int64_t n = 0;
    for (int i = 0; i < tr_list_count(list); i++) n += tr_numel(list->entries[i].tensor);
    return n;
}

tr_status tr_list_set_metadata(tr_tensor_list *list, const char *key, const char *value)
{
    if (!key || !value) return tr__fail(TR_INVALID, "list_set_metadata: the %s is NULL", key ? "value" : "key");
    if (!list) return tr__fail(TR_INVALID, "no list to set \"%s\" in", key);
    TR__TRY(tr_status_of(list));
    int number = tr__names_find(&list->keys, key);
    if (!tr__grow(&list->values, (size_t)list->keys.count, &list->values_room, sizeof *list->values)) return no_memory();
    char *copy = strdup(value);
    if (!copy) return no_memory();
    if (number >= 0) {
        free(list->values[number]);
        list->values[number] = copy;
        return TR_OK;
    }
    tr_status status = tr__names_add(&list->keys, key);
    if (status == TR_OK)
        list->values[list->keys.count - 1] = copy;
    else
        free(copy);
    return status;
}

const char *tr_list_metadata(const tr_tensor_list *list, const char *key)
{
    int number = none(list) ? -1 : tr__names_find(&list->keys, key);
    return number < 0 ? NULL : list->values[number];
}

int tr_list_metadata_count(const tr_tensor_list *list)
{
    return none(list) ? 0 : list->keys.count;
}

const char *tr_list_metadata_key(const tr_tensor_list *list, int i)
{
    return i >= 0 && i < tr_list_metadata_count(list) ? list->keys.text[i] : NULL;
}
