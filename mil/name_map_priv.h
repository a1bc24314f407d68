/*
 * A map from byte strings to 32-bit numbers, for names and for constants by
 * content. Keys are not copied: they must outlive the map.
 */
#ifndef MIL_NAME_MAP_PRIV_H
#define MIL_NAME_MAP_PRIV_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

struct name_map {
    struct name_slot *slots;
    size_t cap, used;
};
#define NAME_MAP_INIT \
    {                 \
        0, 0, 0       \
    }

/* The number stored under a key, or NULL. Valid until the next put. */
uint32_t *name_map_get(const struct name_map *m, const void *key, size_t len);
/* Adds or replaces. */
int name_map_put(struct name_map *m, const void *key, size_t len,
                 uint32_t value, struct err *e) ATTR_MUST_USE;
uint32_t *name_map_find(const struct name_map *m, const char *name);
int name_map_set(struct name_map *m, const char *name, uint32_t value,
                 struct err *e) ATTR_MUST_USE;
void name_map_release(struct name_map *m);

#endif
