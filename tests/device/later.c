/* A plug-in for a later version of the device interface than the library's. */
#include <trireme/device.h>

TR_DEVICE_PLUGIN = {.size = sizeof(tr_device_table), .version = TR_DEVICE_INTERFACE + 1, .kind = "later"};
