/*
 * Shared by the printer and the parser of MIL text.
 */
#ifndef MIL_TEXT_PRIV_H
#define MIL_TEXT_PRIV_H

#include "mil/mil.h"

/* True for data that a parser made of a reference it could not follow: *file
 * is NULL for data without a place. */
bool text_unread(const struct mil_data *d, const char **file, uint64_t *offset);

#define TEXT_FLEXIBLE "FlexibleShapeInformation"

#endif
