#include "device/device.h"

#include "base/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tr__device_table *const tables[TR_DEVICE_KIND_COUNT] = {[TR_CPU] = &tr__cpu_table};
static const char *const kind_names[TR_DEVICE_KIND_COUNT] = {"cpu", "cuda"};

const tr__device_table *tr__device(tr_device_kind kind)
{
    return kind < TR_DEVICE_KIND_COUNT ? tables[kind] : NULL;
}

int tr_device_count(tr_device_kind kind)
{
    const tr__device_table *table = tr__device(kind);
    return table ? table->count() : 0;
}

char *tr_device_name(tr_device device, char text[16])
{
    const char *kind = device.kind < TR_DEVICE_KIND_COUNT ? kind_names[device.kind] : "?";
    snprintf(text, 16, "%s:%d", kind, device.index);
    return text;
}

tr_status tr__device_check(tr_device device)
{
    if (device.kind == TR_CPU) TR__TRY(tr__cpu_environment());
    int count = tr_device_count(device.kind);
    if (device.index >= 0 && device.index < count) return TR_OK;
    char name[16];
    tr_device_name(device, name);
    const char *kind = device.kind < TR_DEVICE_KIND_COUNT ? kind_names[device.kind] : "such";
    if (count == 0) return tr__fail(TR_DEVICE, "there is no device %s: this process has no %s devices", name, kind);
    return tr__fail(TR_DEVICE, "there is no device %s: this process has %s:0 to %s:%d%s", name, kind, kind, count - 1,
        device.kind == TR_CPU ? " (TRIREME_CPU_DEVICES sets how many)" : "");
}

tr_status tr_device_parse(const char *text, tr_device *out)
{
    for (int kind = 0; kind < TR_DEVICE_KIND_COUNT; kind++) {
        size_t length = strlen(kind_names[kind]);
        if (strncmp(text, kind_names[kind], length) != 0) continue;
        tr_device device = {(tr_device_kind)kind, 0};
        const char *rest = text + length;
        if (*rest == ':') {
            char *end;
            long index = strtol(rest + 1, &end, 10);
            if (end == rest + 1 || *end || index < 0 || index > 9999) break;
            device.index = (int)index;
        } else if (*rest) {
            break;
        }
        TR__TRY(tr__device_check(device));
        *out = device;
        return TR_OK;
    }
    return tr__fail(TR_INVALID, "\"%s\" is no device: write cpu, cpu:1 or cuda:0", text);
}
