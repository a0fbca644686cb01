/* Messages to the program's log function, see tr_set_log(). */
#ifndef TR_BASE_LOG_H
#define TR_BASE_LOG_H

#include <trireme/base.h>

/* Does anybody listen to messages of this level? */
bool tr__logs(tr_log_level level);
void tr__log(tr_log_level level, const char *format, ...) TR_PRINTF(2, 3);

#endif
