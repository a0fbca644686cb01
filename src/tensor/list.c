#include "tensor/list.h"

#include <stdlib.h>
#include <string.h>

static void destroy(void *self)
{
    tr_tensor_list *list = self;
    for (int i = 0; i < list->count; i++) {
        free(list->entries[i].name);
        tr__unref(list->entries[i].tensor);
    }
    for (int i = 0; i < 2 * list->metadata_count; i++) free(list->metadata[i]);
    free(list->entries);
    free(list->metadata);
}

const tr__type tr__list_type = {"tensor list", sizeof(tr_tensor_list), destroy};

tr_tensor_list *tr_list(void)
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
    if (!list) return tr__fail(TR_INVALID, "no list to add \"%s\" to", name);
    TR__TRY(tr_status_of(list));
    TR__TRY(tr_status_of(tensor));
    if (!tensor) return tr__fail(TR_INVALID, "no tensor to add to a list as \"%s\"", name);
    if (tr_list_find(list, name)) return tr__fail(TR_INVALID, "a list has two tensors named \"%s\"", name);
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 32;
        tr__list_entry *entries = realloc(list->entries, (size_t)capacity * sizeof *entries);
        if (!entries) return no_memory();
        list->entries = entries;
        list->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy) return no_memory();
    list->entries[list->count++] = (tr__list_entry){copy, tr__ref(tensor)};
    return TR_OK;
}

int tr_list_count(const tr_tensor_list *list)
{
    return none(list) ? 0 : list->count;
}

tr_tensor *tr_list_at(const tr_tensor_list *list, int i)
{
    return !none(list) && i >= 0 && i < list->count ? list->entries[i].tensor : NULL;
}

const char *tr_list_name(const tr_tensor_list *list, int i)
{
    return !none(list) && i >= 0 && i < list->count ? list->entries[i].name : NULL;
}

tr_tensor *tr_list_find(const tr_tensor_list *list, const char *name)
{
    for (int i = 0; i < tr_list_count(list); i++)
        if (strcmp(list->entries[i].name, name) == 0) return list->entries[i].tensor;
    return NULL;
}

int64_t tr_list_numel(const tr_tensor_list *list)
{
    int64_t n = 0;
    for (int i = 0; i < tr_list_count(list); i++) n += tr_numel(list->entries[i].tensor);
    return n;
}

static int metadata_at(const tr_tensor_list *list, const char *key)
{
    for (int i = 0; i < tr_list_metadata_count(list); i++)
        if (strcmp(list->metadata[2 * i], key) == 0) return i;
    return -1;
}

tr_status tr_list_set_metadata(tr_tensor_list *list, const char *key, const char *value)
{
    if (!list) return tr__fail(TR_INVALID, "no list to set \"%s\" in", key);
    TR__TRY(tr_status_of(list));
    char *copy = strdup(value);
    if (!copy) return no_memory();
    int i = metadata_at(list, key);
    if (i >= 0) {
        free(list->metadata[2 * i + 1]);
        list->metadata[2 * i + 1] = copy;
        return TR_OK;
    }
    char **grown = realloc(list->metadata, 2 * ((size_t)list->metadata_count + 1) * sizeof *grown);
    char *name = strdup(key);
    if (grown) list->metadata = grown;
    if (!grown || !name) {
        free(copy);
        free(name);
        return no_memory();
    }
    list->metadata[2 * list->metadata_count] = name;
    list->metadata[2 * list->metadata_count + 1] = copy;
    list->metadata_count++;
    return TR_OK;
}

const char *tr_list_metadata(const tr_tensor_list *list, const char *key)
{
    int i = metadata_at(list, key);
    return i < 0 ? NULL : list->metadata[2 * i + 1];
}

int tr_list_metadata_count(const tr_tensor_list *list)
{
    return none(list) ? 0 : list->metadata_count;
}

const char *tr_list_metadata_key(const tr_tensor_list *list, int i)
{
    return i >= 0 && i < tr_list_metadata_count(list) ? list->metadata[2 * i] : NULL;
}
