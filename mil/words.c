/*
 * Reserved words of MIL text. Types of less than 8 bits, numbers and
 * BLOBFILE are not in the published list, but a reader meets them where a
 * name may stand.
 */
#include "mil/words_priv.h"

#include <stddef.h>
#include <string.h>

static const char *const words[] = {
    "any",    "bool",   "program", "func",   "tensor",   "list",  "dict",
    "tuple",  "true",   "false",   "string", "bf16",     "fp16",  "fp32",
    "fp64",   "int8",   "int16",   "int32",  "int64",    "uint8", "uint16",
    "uint32", "uint64", "state",   "int4",   "uint1",    "uint2", "uint3",
    "uint4",  "uint6",  "inf",     "nan",    "BLOBFILE",
};

bool mil_is_reserved(const char *name)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i], name) == 0)
            return true;
    }
    return false;
}
