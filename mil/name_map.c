/*
 * Open addressing with linear probing; the table doubles at 3/4 full.
 */
#include "mil/name_map_priv.h"

#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/mem.h"

struct name_slot {
    const void *key; /* NULL: free */
    size_t len;
    uint64_t hash;
    uint32_t value;
};

static struct name_slot *probe(struct name_slot *slots, size_t cap,
                               uint64_t hash, const void *key, size_t len)
{
    size_t i = (size_t)hash & (cap - 1);

    while (slots[i].key) {
        if (slots[i].hash == hash && slots[i].len == len &&
            memcmp(slots[i].key, key, len) == 0)
            break;
        i = (i + 1) & (cap - 1);
    }
    return &slots[i];
}

static int grow(struct name_map *m, struct err *e)
{
    size_t cap = m->cap ? m->cap * 2 : 64;
    struct name_slot *slots = mem_zalloc(cap, sizeof *slots, e);

    if (!slots)
        return -1;
    for (size_t i = 0; i < m->cap; i++) {
        struct name_slot *s = &m->slots[i];

        if (s->key)
            *probe(slots, cap, s->hash, s->key, s->len) = *s;
    }
    mem_free(m->slots);
    m->slots = slots;
    m->cap = cap;
    return 0;
}

uint32_t *name_map_get(const struct name_map *m, const void *key, size_t len)
{
    struct name_slot *s;

    if (!m->cap)
        return NULL;
    s = probe(m->slots, m->cap, hash_bytes(key, len).lo, key, len);
    return s->key ? &s->value : NULL;
}

int name_map_put(struct name_map *m, const void *key, size_t len,
                 uint32_t value, struct err *e)
{
    uint64_t hash = hash_bytes(key, len).lo;
    struct name_slot *s;

    if (m->used >= m->cap / 4 * 3 && grow(m, e))
        return -1;
    s = probe(m->slots, m->cap, hash, key, len);
    if (!s->key)
        m->used++;
    *s = (struct name_slot){ key, len, hash, value };
    return 0;
}

uint32_t *name_map_find(const struct name_map *m, const char *name)
{
    return name_map_get(m, name, strlen(name));
}

int name_map_set(struct name_map *m, const char *name, uint32_t value,
                 struct err *e)
{
    return name_map_put(m, name, strlen(name), value, e);
}

void name_map_release(struct name_map *m)
{
    mem_free(m->slots);
    *m = (struct name_map)NAME_MAP_INIT;
}
