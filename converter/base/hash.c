/*
 * XXH3-128. libxxhash's code is compiled in (XXH_INLINE_ALL): the layout of
 * its state is then our own and not subject to the shared library's version.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "converter/base/hash.h"

#include <inttypes.h>
#include <stdio.h>

#include "converter/base/mem.h"

struct hash_state {
    XXH3_state_t xxh; /* wants 64-byte alignment */
};

struct hash_state *hash_new(struct err *e)
{
    struct hash_state *h = mem_alloc_aligned(1, sizeof *h, e);

    if (h == NULL)
        return NULL;
    hash_reset(h);
    return h;
}

void hash_reset(struct hash_state *h)
{
    XXH3_INITSTATE(&h->xxh);
    if (XXH3_128bits_reset(&h->xxh) != XXH_OK)
        BUG("XXH3_128bits_reset failed");
}

void hash_add(struct hash_state *h, const void *p, size_t n)
{
    if (n > 0 && XXH3_128bits_update(&h->xxh, p, n) != XXH_OK)
        BUG("XXH3_128bits_update failed");
}

struct hash128 hash_get(const struct hash_state *h)
{
    XXH128_hash_t v = XXH3_128bits_digest(&h->xxh);

    return (struct hash128){ v.high64, v.low64 };
}

void hash_free(struct hash_state *h)
{
    mem_free(h);
}

struct hash128 hash_bytes(const void *p, size_t n)
{
    XXH128_hash_t v = XXH3_128bits(n > 0 ? p : "", n);

    return (struct hash128){ v.high64, v.low64 };
}

uint64_t hash_short(const void *p, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(n > 0 ? p : "", n, seed);
}

void hash_uuid(char out[HASH_UUID_MAX], struct hash128 h)
{
    /* RFC 9562 version 8 (custom) and variant bits, so that strict readers
     * take it as a UUID. */
    uint64_t hi = (h.hi & ~UINT64_C(0xf000)) | UINT64_C(0x8000);
    uint64_t lo = (h.lo & (UINT64_MAX >> 2)) | (UINT64_C(2) << 62);

    snprintf(out, HASH_UUID_MAX, "%08" PRIX32 "-%04X-%04X-%04X-%04X%08" PRIX32,
             (uint32_t)(hi >> 32), (unsigned)(hi >> 16) & 0xffff,
             (unsigned)hi & 0xffff, (unsigned)(lo >> 48),
             (unsigned)(lo >> 32) & 0xffff, (uint32_t)lo);
}
