/*
 * Words that MIL text reads as its own: no name may be one of them.
 */
#ifndef MIL_WORDS_PRIV_H
#define MIL_WORDS_PRIV_H

#include <stdbool.h>

bool mil_is_reserved(const char *name);

#endif
