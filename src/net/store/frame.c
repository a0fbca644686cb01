#include "net/store/frame.h"

#include "net/store/store.h"

#include <string.h>

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

uint64_t tr__read_number(const unsigned char *bytes, int size)
{
    uint64_t number = 0;
    for (int i = 0; i < size; i++) number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

void tr__write_number(unsigned char *bytes, int size, uint64_t number)
{
    for (int i = 0; i < size; i++) bytes[i] = (unsigned char)(number >> (8 * i));
}

/* Bytes between the key and the first value, by type. */
static const unsigned char fixed_bytes[] = {
    [TR__FRAME_HELLO] = 8,
    [TR__FRAME_GET] = 4,
    [TR__FRAME_WAIT] = 4,
    [TR__FRAME_SET] = 0,
    [TR__FRAME_ADD] = 8,
    [TR__FRAME_COMPARE_SET] = 5,
    [TR__FRAME_REPLY] = 1,
    [TR__FRAME_GATHER] = 4,
    [TR__FRAME_DELETE] = 0,
};

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static bool take(tr__list *list, size_t bytes, const unsigned char **taken)
{
    if (bytes > list->bytes) return false;
    *taken = list->items;
    list->items += bytes;
    list->bytes -= bytes;
    return true;
}

bool tr__list_take_key(tr__list *list, const char **key, size_t *bytes)
{
    const unsigned char *head, *item;
    if (!take(list, TR__LIST_KEY, &head)) return false;
    *bytes = (size_t)tr__read_number(head, TR__LIST_KEY);
    if (*bytes < 1 || *bytes > TR__KEY_MAX || !take(list, *bytes, &item) || memchr(item, 0, *bytes)) return false;
    *key = (const char *)item;
    return true;
}

bool tr__list_take_value(tr__list *list, const void **value, size_t *bytes)
{
    const unsigned char *head, *item = NULL;
    if (!take(list, TR__LIST_VALUE, &head)) return false;
    size_t count = (size_t)tr__read_number(head, TR__LIST_VALUE);
    *bytes = count > 0 ? count - 1 : 0;
    if (count > 0 && !take(list, *bytes, &item)) return false;
    *value = item;
    return true;
}

static unsigned char *put(unsigned char *at, int head, uint64_t number, const void *item, size_t bytes)
{
    tr__write_number(at, head, number);
    if (bytes) memcpy(at + head, item, bytes);
    return at + head + bytes;
}

unsigned char *tr__list_put_key(unsigned char *at, const char *key, size_t bytes)
{
    return put(at, TR__LIST_KEY, bytes, key, bytes);
}

unsigned char *tr__list_put_value(unsigned char *at, const void *value, size_t bytes)
{
    return put(at, TR__LIST_VALUE, value ? bytes + 1 : 0, value, value ? bytes : 0);
}

/* At least one key, and nothing behind the last. */
static bool is_key_list(tr__list list)
{
    const char *key;
    size_t bytes;
    if (list.bytes == 0 || list.bytes > TR__VALUE_MAX) return false;
    while (list.bytes > 0)
        if (!tr__list_take_key(&list, &key, &bytes)) return false;
    return true;
}

/* ---- Parsing ----------------------------------------------------------------------------------------------------- */

/* The fields of one type; `fixed` are the fixed ones as one number, `rest` is what follows them. False when they do not fit. */
static bool parse_fields(tr__frame *f, uint64_t fixed, const unsigned char *rest, size_t rest_bytes)
{
    f->value = rest;
    f->value_bytes = rest_bytes;
    switch (f->type) {
    case TR__FRAME_HELLO: return fixed == TR__FRAME_MAGIC && rest_bytes == 0;
    case TR__FRAME_GET:
    case TR__FRAME_WAIT: f->timeout_ms = (uint32_t)fixed; return rest_bytes == 0 && fixed <= INT32_MAX;
    case TR__FRAME_GATHER:
        f->timeout_ms = (uint32_t)fixed;
        return fixed <= INT32_MAX && is_key_list((tr__list){rest, rest_bytes});
    case TR__FRAME_SET: return rest_bytes <= TR__VALUE_MAX;
    case TR__FRAME_DELETE: return rest_bytes == 0;
    case TR__FRAME_ADD: f->amount = (int64_t)fixed; return rest_bytes == 0;
    case TR__FRAME_COMPARE_SET: {
        unsigned expects = fixed & 0xff;
        f->expected_bytes = (size_t)(fixed >> 8);
        if (f->expected_bytes > rest_bytes || f->expected_bytes > TR__VALUE_MAX) return false;
        if (expects > 1 || (!expects && f->expected_bytes > 0)) return false;
        f->expected = expects ? rest : NULL;
        f->value = rest + f->expected_bytes;
        f->value_bytes = rest_bytes - f->expected_bytes;
        return f->value_bytes <= TR__VALUE_MAX;
    }
    case TR__FRAME_REPLY: f->code = (tr__frame_code)fixed; return fixed < TR__REPLY_CODES && rest_bytes <= TR__VALUE_MAX;
    }
    return false;
}

ssize_t tr__frame_parse(const unsigned char *bytes, size_t count, size_t limit, tr__frame *frame)
{
    if (count < TR__FRAME_HEADER) return 0;
    size_t body = (size_t)tr__read_number(bytes, 4), key_bytes = (size_t)tr__read_number(bytes + 6, 2);
    unsigned version = bytes[4], type = bytes[5];
    bool known = type >= TR__FRAME_HELLO && type <= TR__FRAME_DELETE;
    bool has_key = type != TR__FRAME_HELLO && type != TR__FRAME_REPLY && type != TR__FRAME_GATHER;
    if (version != TR__FRAME_VERSION || !known || body > limit - TR__FRAME_HEADER) return -1;
    if (key_bytes > TR__KEY_MAX || has_key != (key_bytes > 0) || body < key_bytes + fixed_bytes[type]) return -1;
    if (count < TR__FRAME_HEADER + body) return 0;
    const unsigned char *key = bytes + TR__FRAME_HEADER, *fixed = key + key_bytes, *rest = fixed + fixed_bytes[type];
    *frame = (tr__frame){.type = type, .key = (const char *)key, .key_bytes = key_bytes};
    if (memchr(key, 0, key_bytes)) return -1;
    uint64_t number = tr__read_number(fixed, fixed_bytes[type]);
    if (!parse_fields(frame, number, rest, body - key_bytes - fixed_bytes[type])) return -1;
    return (ssize_t)(TR__FRAME_HEADER + body);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* The fixed fields as one number. */
static uint64_t fixed_of(const tr__frame *f)
{
    switch (f->type) {
    case TR__FRAME_HELLO: return TR__FRAME_MAGIC;
    case TR__FRAME_ADD: return (uint64_t)f->amount;
    case TR__FRAME_COMPARE_SET: return (f->expected != NULL) | (uint64_t)f->expected_bytes << 8;
    case TR__FRAME_REPLY: return f->code;
    default: return f->timeout_ms; /* SET and DELETE have no room for it */
    }
}

int tr__frame_pieces(const tr__frame *f, unsigned char head[TR__FRAME_HEAD], struct iovec pieces[TR__FRAME_PIECES])
{
    size_t fixed = fixed_bytes[f->type];
    int count = 0;
    /* The fixed fields come after the key, which is a piece of its own, and share the head's memory. */
    struct iovec all[] = {
        {head, TR__FRAME_HEADER},
        {(void *)f->key, f->key_bytes},
        {head + TR__FRAME_HEADER, fixed},
        {(void *)f->expected, f->expected_bytes},
        {(void *)f->value, f->value_bytes},
    };
    size_t body = f->key_bytes + fixed + f->expected_bytes + f->value_bytes;
    tr__write_number(head, 4, body);
    head[4] = TR__FRAME_VERSION;
    head[5] = (unsigned char)f->type;
    tr__write_number(head + 6, 2, f->key_bytes);
    tr__write_number(head + TR__FRAME_HEADER, (int)fixed, fixed_of(f));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].iov_len) pieces[count++] = all[i];
    return count;
}
