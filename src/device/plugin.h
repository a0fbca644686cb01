/* Opening plug-ins (trireme/device.h says where they are looked for). */
#ifndef TR_DEVICE_PLUGIN_H
#define TR_DEVICE_PLUGIN_H

#include <trireme/device.h>

/* Room for the name of a kind, so that "kind:9999" fits into 16 bytes. */
enum { TR__KIND_NAME = 11 };

/* Looks for the plug-in of the kind that has this name, once in the life of the process, and hands its table to
 * tr__kind_bring(). */
void tr__plugin_find(const char *kind);
/* Why there are no devices of a kind: what went wrong with the plug-in that has it, or with one that may have it, or where it
 * was looked for. Makes the failure, TR_DEVICE; `device`: the one that was asked for. */
tr_status tr__plugin_missing(const char *kind, const char *device);

/* Gives a kind its devices. Fails when it has some already. */
tr_status tr__kind_bring(const tr_device_table *table);

#endif
