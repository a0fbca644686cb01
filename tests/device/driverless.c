/* A plug-in that finds no driver: its other functions are never called. */
#include <trireme/device.h>

#include <stdlib.h>

static tr_status start(const tr_device_host *host)
{
    return host->fail(TR_DEVICE, "the driver is version %d, and 12 is needed", 11);
}

static int never(void) { abort(); }
#define NEVER(name) .name = (void *)never

TR_DEVICE_PLUGIN = {
    .size = sizeof(tr_device_table), .version = TR_DEVICE_INTERFACE, .kind = "driverless", .open = start, NEVER(count),
    NEVER(properties), NEVER(allocate), NEVER(release), NEVER(memory), NEVER(stream_new), NEVER(stream_free),
    NEVER(stream_synchronize), NEVER(event_new), NEVER(event_free), NEVER(event_record), NEVER(stream_wait), NEVER(event_done),
    NEVER(event_synchronize), NEVER(synchronize), NEVER(copy_in), NEVER(copy_out), NEVER(copy_within), NEVER(copy_peer),
    NEVER(set_bytes),
};
