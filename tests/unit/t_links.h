/*
 * Test helper: a world without hard links.
 */
#ifndef T_LINKS_H
#define T_LINKS_H

#include <stdbool.h>

/* From here on no process of this one's makes a hard link: the calls fail as
 * on a file system that knows none. There is no way back. False where the
 * system has no such filter. */
bool t_links_forbid(void);

#endif
