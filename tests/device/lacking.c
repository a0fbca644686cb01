/* A plug-in without functions. */
#include <trireme/device.h>

TR_DEVICE_PLUGIN = {.size = sizeof(tr_device_table), .version = TR_DEVICE_INTERFACE, .kind = "lacking"};
