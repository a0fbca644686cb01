#include "tensor/names.h"

#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool has_bit(const char *name, size_t length, const tr__name_node *node)
{
    return node->byte < length && ((unsigned char)name[node->byte] & node->bit);
}

/* The one name that can be equal to this one: it has the same bits wherever the tree looks. There is at least one. */
static int nearest(const tr__names *n, const char *name, size_t length)
{
    int32_t at = n->root;
    while (at >= 0) at = n->nodes[at].child[has_bit(name, length, &n->nodes[at])];
    return ~at;
}

int tr__names_find(const tr__names *n, const char *name)
{
    if (!n->count) return -1;
    int number = nearest(n, name, strlen(name));
    return strcmp(n->text[number], name) == 0 ? number : -1;
}

tr_status tr__names_add(tr__names *n, const char *name)
{
    size_t length = strlen(name), count = (size_t)n->count;
    if (n->count == INT_MAX || !tr__grow(&n->text, count, &n->text_room, sizeof *n->text) ||
        !tr__grow(&n->nodes, count, &n->nodes_room, sizeof *n->nodes))
        return tr__fail(TR_NO_MEMORY, "out of memory for more than %d names", n->count);
    char *copy = strdup(name);
    if (!copy || length > UINT32_MAX) {
        free(copy);
        return tr__fail(TR_NO_MEMORY, "out of memory for a name of %zu bytes", length);
    }
    int number = n->count++;
    n->text[number] = copy;
    if (number == 0) {
        n->root = ~0;
        return TR_OK;
    }

    /* The new node: the first bit in which the name differs from its nearest, and so from all that share more with
     * that. */
    const char *other = n->text[nearest(n, name, length)];
    size_t byte = 0;
    while (name[byte] == other[byte]) byte++;
    unsigned differing = (unsigned char)name[byte] ^ (unsigned char)other[byte];
    tr__name_node *node = &n->nodes[number - 1];
    *node = (tr__name_node){.byte = (uint32_t)byte, .bit = (uint8_t)(1u << (31 - __builtin_clz(differing)))};

    /* Its place: above the first node that looks at a later bit. */
    int32_t *link = &n->root;
    while (*link >= 0) {
        tr__name_node *at = &n->nodes[*link];
        if (at->byte > node->byte || (at->byte == node->byte && at->bit < node->bit)) break;
        link = &at->child[has_bit(name, length, at)];
    }
    bool side = has_bit(name, length, node);
    node->child[side] = ~number;
    node->child[!side] = *link;
    *link = number - 1;
    return TR_OK;
}

void tr__names_free(tr__names *n)
{
    for (int i = 0; i < n->count; i++) free(n->text[i]);
    free(n->text);
    free(n->nodes);
    *n = (tr__names){0};
}
