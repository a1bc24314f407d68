/*
 * The cache: an entry that is taken is whole, and gives back what was put in.
 */
#include "converter/base/err.h"
#include "converter/base/num.h"
#include "converter/cache.h"
#include "tests/fuzz/target.h"

#define MOST (UINT64_C(1) << 24)

static struct cache *folder(void)
{
    static struct cache *c;
    struct err e = ERR_INIT;

    if (!c)
        c = cache_open(fuzz_dir, 0, NULL, &e);
    FUZZ_CHECK(c);
    return c;
}

/* An entry under the name that it claims; whether it was taken. */
static int take(const uint8_t *data, size_t size)
{
    struct hash128 key = { load_le64(data + 16), load_le64(data + 24) };
    uint64_t bytes = load_le64(data + 32), left;
    static uint8_t room[4096];
    struct err e = ERR_INIT;
    struct qz_stats stats;
    struct cache_found *f;
    char name[64];
    const char *path;

    snprintf(name, sizeof(name), "%016llx%016llx" CACHE_SUFFIX,
             (unsigned long long)key.hi, (unsigned long long)key.lo);
    path = fuzz_file(name, data, size);
    f = bytes <= MOST ? cache_find(folder(), key, bytes) : NULL;
    for (left = f ? bytes : 0; left;) {
        size_t n = left < sizeof(room) ? (size_t)left : sizeof(room);

        FUZZ_CHECK(!cache_read(f, room, n, &e));
        left -= n;
    }
    if (f)
        FUZZ_CHECK(cache_at(f) == bytes && !cache_read_end(f, &stats, &e));
    cache_found_free(f);
    FUZZ_CHECK(!unlink(path));
    return f != NULL;
}

/* With the versions and sums that it would have, so that the blocks are looked
 * at. */
static void take_summed(const uint8_t *data, size_t size)
{
    uint8_t *p = malloc(size);
    struct err e = ERR_INIT;
    struct hash_state *h = hash_new(&e);
    struct hash128 sum;

    FUZZ_CHECK(p && h);
    memcpy(p, data, size);
    store_le32(p + 8, CACHE_VERSION);
    store_le32(p + 12, QZ_RESULTS);
    store_le64(p + 40, size - CACHE_HEADER);
    hash_add(h, p + CACHE_HEADER, size - CACHE_HEADER);
    hash_add(h, p, 112);
    sum = hash_get(h);
    store_le64(p + 112, sum.hi);
    store_le64(p + 120, sum.lo);
    (void)take(p, size);
    hash_free(h);
    free(p);
}

static void put_and_take(const uint8_t *data, size_t size)
{
    struct hash128 key = hash_bytes(data, size);
    struct qz_stats in = { .sse = (double)size, .groups = size }, out;
    struct cache_fresh *n = cache_begin(folder(), key, size);
    struct cache_found *f;
    struct err e = ERR_INIT;
    uint8_t *p = malloc(size);
    char path[128];

    FUZZ_CHECK(n && p);
    cache_add(n, data, size / 2);
    cache_add(n, data + size / 2, size - size / 2);
    cache_commit(n, &in);
    f = cache_find(folder(), key, size);
    FUZZ_CHECK(f && !cache_read(f, p, size, &e) && !memcmp(p, data, size));
    FUZZ_CHECK(!cache_read_end(f, &out, &e) && !memcmp(&in, &out, sizeof(in)));
    cache_found_free(f);
    free(p);
    snprintf(path, sizeof(path), "%s/%016llx%016llx" CACHE_SUFFIX, fuzz_dir,
             (unsigned long long)key.hi, (unsigned long long)key.lo);
    FUZZ_CHECK(!unlink(path));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < CACHE_HEADER)
        return 0;
    if (!fuzz_dir[0])
        (void)fuzz_file("input.safetensors", data, size);
    (void)take(data, size);
    take_summed(data, size);
    put_and_take(data, size);
    return 0;
}
