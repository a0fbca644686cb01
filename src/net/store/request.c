/* What a client of the TCP store's server asks: looking keys up, waiting for them, changing them. */
#include "net/store/client.h"
#include "net/store/store.h"

#include <stdlib.h>
#include <string.h>

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void leave_queue(tr__client *c)
{
    if (!c->entry) return;
    *c->waiter_at = c->next_waiter;
    if (c->next_waiter) c->next_waiter->waiter_at = c->waiter_at;
    tr__map_prune(&c->server->map, c->entry);
    c->entry = NULL;
}

static void enter_queue(tr__client *c, tr__entry *entry)
{
    tr__client *first = entry->waiters;
    c->entry = entry;
    c->next_waiter = first;
    c->waiter_at = (tr__client **)&entry->waiters;
    if (first) first->waiter_at = &c->next_waiter;
    entry->waiters = c;
    c->state = TR__CLIENT_WAITING;
}

void tr__request_forget(tr__client *c)
{
    leave_queue(c);
    free(c->keys);
    c->keys = NULL;
}

static void answer_gather(tr__client *c, tr__frame_code code);

static void on_timeout(uv_timer_t *timer)
{
    tr__client *c = timer->data;
    if (c->keys) {
        answer_gather(c, TR__REPLY_TIMEOUT);
        return;
    }
    leave_queue(c);
    tr__client_reply(c, TR__REPLY_TIMEOUT, NULL);
}

/* ---- Several keys ------------------------------------------------------------------------------------------------ */

void tr__request_changed(tr__server *s)
{
    free(s->gathered.keys);
    tr__map_value_unref(s->gathered.values);
    s->gathered.keys = NULL;
    s->gathered.values = NULL;
}

static const tr__map_value *value_of(tr__server *s, tr__list *keys)
{
    const char *key = NULL;
    size_t bytes = 0;
    tr__list_take_key(keys, &key, &bytes);
    const tr__entry *entry = tr__map_find(&s->map, key, bytes, false);
    return entry ? entry->value : NULL;
}

/* The list of what the keys hold now. NULL with *code set: there can be none. */
static tr__map_value *list_values(tr__server *s, tr__list keys, tr__frame_code *code)
{
    size_t bytes = 0;
    for (tr__list left = keys; left.bytes > 0;) {
        const tr__map_value *value = value_of(s, &left);
        bytes += TR__LIST_VALUE + (value ? value->bytes : 0);
        if (bytes > TR__VALUE_MAX) {
            *code = TR__REPLY_TOO_LARGE;
            return NULL;
        }
    }
    tr__map_value *list = tr__map_value_new(NULL, bytes);
    if (!list) *code = TR__REPLY_NO_MEMORY;
    unsigned char *at = list ? list->data : NULL;
    for (tr__list left = keys; list && left.bytes > 0;) {
        const tr__map_value *value = value_of(s, &left);
        at = tr__list_put_value(at, value ? value->data : NULL, value ? value->bytes : 0);
    }
    return list;
}

/* A whole world asks for the same keys, and gets the same list. */
static bool is_gathered(const tr__client *c)
{
    const tr__server *s = c->server;
    return s->gathered.values && s->gathered.keys_bytes == c->keys_bytes &&
           memcmp(s->gathered.keys, c->keys, c->keys_bytes) == 0;
}

/* With what there is. */
static void answer_gather(tr__client *c, tr__frame_code code)
{
    tr__server *s = c->server;
    leave_queue(c);
    uv_timer_stop(&c->timer);
    if (!is_gathered(c)) {
        tr__request_changed(s);
        s->gathered.values = list_values(s, (tr__list){c->keys, c->keys_bytes}, &code);
        s->gathered.keys = c->keys;
        s->gathered.keys_bytes = c->keys_bytes;
        c->keys = NULL;
    }
    tr__request_forget(c);
    tr__client_reply(c, code, s->gathered.values);
}

static bool all_have_values(tr__server *s, tr__list keys)
{
    while (keys.bytes > 0)
        if (!value_of(s, &keys)) return false;
    return true;
}

/* Waits for the first of the keys left that has no value, or answers. One that had a value may have been deleted meanwhile. */
static void go_on_gathering(tr__client *c)
{
    const char *key;
    size_t bytes;
    while (tr__list_take_key(&c->keys_left, &key, &bytes)) {
        tr__entry *entry = tr__map_find(&c->server->map, key, bytes, true);
        if (entry && entry->value) continue;
        if (entry) {
            enter_queue(c, entry);
            return;
        }
        tr__request_forget(c);
        uv_timer_stop(&c->timer);
        tr__client_reply(c, TR__REPLY_NO_MEMORY, NULL);
        return;
    }
    if (all_have_values(c->server, (tr__list){c->keys, c->keys_bytes})) {
        answer_gather(c, TR__REPLY_OK);
        return;
    }
    c->keys_left = (tr__list){c->keys, c->keys_bytes};
    go_on_gathering(c);
}

static void gather(tr__client *c, const tr__frame *f)
{
    c->keys = malloc(f->value_bytes);
    if (!c->keys) {
        tr__client_reply(c, TR__REPLY_NO_MEMORY, NULL);
        return;
    }
    memcpy(c->keys, f->value, f->value_bytes);
    c->keys_bytes = f->value_bytes;
    c->keys_left = (tr__list){c->keys, c->keys_bytes};
    if (f->timeout_ms == 0) {
        answer_gather(c, all_have_values(c->server, c->keys_left) ? TR__REPLY_OK : TR__REPLY_TIMEOUT);
        return;
    }
    uv_timer_start(&c->timer, on_timeout, f->timeout_ms, 0);
    go_on_gathering(c);
}

/* ---- One key ----------------------------------------------------------------------------------------------------- */

/* The key has a value now. */
static void wake_waiters(tr__entry *entry)
{
    while (entry->waiters) {
        tr__client *c = entry->waiters;
        leave_queue(c); /* which keeps the entry, as it has a value */
        if (c->keys) {
            go_on_gathering(c);
            continue;
        }
        uv_timer_stop(&c->timer);
        tr__client_reply(c, TR__REPLY_OK, c->wants_value ? entry->value : NULL);
    }
}

static tr__frame_code code_of(int status)
{
    switch (status) {
    case TR_OK: return TR__REPLY_OK;
    case TR_FORMAT: return TR__REPLY_NO_NUMBER;
    case TR_UNSUPPORTED: return TR__REPLY_FULL;
    default: return TR__REPLY_NO_MEMORY;
    }
}

static void look_up(tr__client *c, const tr__frame *f)
{
    c->wants_value = f->type == TR__FRAME_GET;
    tr__entry *entry = tr__map_find(&c->server->map, f->key, f->key_bytes, f->timeout_ms > 0);
    if (entry && entry->value)
        tr__client_reply(c, TR__REPLY_OK, c->wants_value ? entry->value : NULL);
    else if (!entry || f->timeout_ms == 0)
        tr__client_reply(c, f->timeout_ms > 0 ? TR__REPLY_NO_MEMORY : TR__REPLY_TIMEOUT, NULL);
    else {
        enter_queue(c, entry);
        uv_timer_start(&c->timer, on_timeout, f->timeout_ms, 0);
    }
}

static void change(tr__client *c, const tr__frame *f, int kind)
{
    tr__map *map = &c->server->map;
    bool deletes = kind == TR__CHANGE_DELETE;
    tr__change change = {.kind = kind, .value = f->value, .bytes = f->value_bytes, .expected = f->expected,
        .expected_bytes = f->expected_bytes, .amount = f->amount};
    tr__entry *entry = tr__map_find(map, f->key, f->key_bytes, !deletes);
    if (!entry) {
        tr__client_reply(c, deletes ? TR__REPLY_ABSENT : TR__REPLY_NO_MEMORY, NULL);
        return;
    }
    tr__request_changed(c->server);
    tr__frame_code code = code_of(tr__map_change(map, entry, &change));
    if (code == TR__REPLY_OK && (deletes ? !change.changed : !entry->value)) code = TR__REPLY_ABSENT;
    tr__client_reply(c, code, kind == TR__CHANGE_SET || code != TR__REPLY_OK ? NULL : entry->value);
    if (entry->value) wake_waiters(entry);
    tr__map_prune(map, entry);
}

void tr__request_handle(tr__client *c, const tr__frame *f)
{
    switch (f->type) {
    case TR__FRAME_GET:
    case TR__FRAME_WAIT: look_up(c, f); break;
    case TR__FRAME_GATHER: gather(c, f); break;
    case TR__FRAME_SET: change(c, f, TR__CHANGE_SET); break;
    case TR__FRAME_ADD: change(c, f, TR__CHANGE_ADD); break;
    case TR__FRAME_COMPARE_SET: change(c, f, TR__CHANGE_COMPARE_SET); break;
    case TR__FRAME_DELETE: change(c, f, TR__CHANGE_DELETE); break;
    case TR__FRAME_HELLO:
    case TR__FRAME_REPLY: tr__client_close(c); break;
    }
}
