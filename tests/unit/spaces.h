/*
 * Hosts for tests: network namespaces on one bridge, each with an address, which root can make. A link between two of them
 * can be cut, slow and lossy.
 */
#ifndef SPACES_H
#define SPACES_H

#include <stdbool.h>
#include <stddef.h>

enum { SPACES_MOST = 4, SPACE_TEXT = 64 };

/* Makes hosts 0 … count - 1; false where that is not possible, with the reason printed. */
bool spaces_make(int count);
void spaces_remove(void);
/* The name that `ip netns` knows it by, and its address. */
char *space_name(int host, char text[SPACE_TEXT]);
char *space_address(int host, char text[SPACE_TEXT]);
/* The calling thread goes there. */
bool space_enter(const char *name);
/* Cuts the host's link to the others, or mends it. */
bool space_link(int host, bool up);
/* What `tc … netem` does to all that the host sends, as "delay 2ms loss 1%"; NULL: nothing. */
bool space_shape(int host, const char *netem);

#endif
