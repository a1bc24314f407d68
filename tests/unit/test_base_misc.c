/*
 * Hash, log and CPU features.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/cpu.h"
#include "converter/base/hash.h"
#include "converter/base/log.h"
#include "converter/base/sha256.h"

Test(hash, known_value)
{
    /* XXH3's published test vector: no bytes, seed 0. */
    struct hash128 h = hash_bytes(NULL, 0);

    cr_assert_eq(h.hi, UINT64_C(0x99aa06d3014798d8));
    cr_assert_eq(h.lo, UINT64_C(0x6001c324468d497f));
}

Test(hash, pieces_give_the_hash_of_the_whole)
{
    static unsigned char data[5000];
    struct err e = ERR_INIT;
    struct hash_state *s = hash_new(&e);
    struct hash128 whole, parts;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 131 >> 3);
    for (size_t step = 1; step < 4000; step = step * 3 + 1) {
        hash_reset(s);
        for (size_t i = 0; i < sizeof data; i += step)
            hash_add(s, data + i,
                     sizeof data - i < step ? sizeof data - i : step);
        whole = hash_bytes(data, sizeof data);
        parts = hash_get(s);
        cr_assert(whole.hi == parts.hi && whole.lo == parts.lo, "step %zu",
                  step);
    }
    hash_add(s, NULL, 0);
    parts = hash_get(s);
    cr_assert_eq(whole.lo, parts.lo);
    data[17] ^= 1;
    whole = hash_bytes(data, sizeof data);
    cr_assert_neq(whole.lo, parts.lo);
    hash_free(s);
    hash_free(NULL);
}

/* The published vectors, and lengths around the end of a block. */
Test(hash, sha256)
{
    static char text[1000000];
    static const struct {
        size_t n;
        const char *want; /* of n letters 'a' */
    } runs[] = {
        { 0, "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=" },
        { 55, "n0OQ+NMMLdkuyfCVtl4rmumwqSWlJY4kHJ8ekQ9zQxg=" },
        { 56, "s1Q5pKxvCUi21vnjxq8PX1kM4g8b3nCQ73lwaG7Gc4o=" },
        { 63, "fT50oF19sVvOStnsBljqmOPwbu7PFrTG//LaRX3cLzQ=" },
        { 64, "/+BU/nrgy23GXDr5th1SCfQ5hR20PQulmXM33xVGaOs=" },
        { 65, "Y1NhxIu56rFBmOduqKt/GkFoXWrWKqkUbTAdTxfrCuA=" },
        { 1000000, "zcduXJkU+5KBocfihNc+Z/GAmkiklyAOBG05zMcRLNA=" },
    };
    uint8_t h[SHA256_BYTES];
    char out[BASE64_MAX(SHA256_BYTES)];

    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        sha256(text, runs[i].n, h);
        base64(h, sizeof h, out);
        cr_expect_str_eq(out, runs[i].want, "%zu bytes", runs[i].n);
    }
    sha256("abc", 3, h);
    base64(h, sizeof h, out);
    cr_expect_str_eq(out, "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
}

Test(hash, base64)
{
    static const char *const pairs[][2] = {
        { "", "" },        { "f", "Zg==" },          { "fo", "Zm8=" },
        { "foo", "Zm9v" }, { "foobar", "Zm9vYmFy" }, { "\xfb\xff\xfe", "+//+" },
    };
    char out[32];

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        base64(pairs[i][0], strlen(pairs[i][0]), out);
        cr_expect_str_eq(out, pairs[i][1]);
    }
}

Test(hash, uuid_text)
{
    char text[HASH_UUID_MAX];

    hash_uuid(text, (struct hash128){ UINT64_C(0x0123456789abcdef),
                                      UINT64_C(0xfedcba9876543210) });
    cr_assert_str_eq(text, "01234567-89AB-8DEF-BEDC-BA9876543210");
    hash_uuid(text, (struct hash128){ 0, 0 });
    cr_assert_str_eq(text, "00000000-0000-8000-8000-000000000000");
}

static char logged[4096];
static int lines;

static void take_line(void *cookie, enum log_level level, const char *text)
{
    (void)level;
    cr_assert_eq(cookie, &lines);
    snprintf(logged, sizeof logged, "%s", text);
    lines++;
}

static void take_progress(void *cookie, const char *stage, uint64_t done,
                          uint64_t total, const char *unit)
{
    (void)cookie;
    snprintf(logged, sizeof logged, "%s %d/%d %s", stage, (int)done, (int)total,
             unit);
}

static int say_stop(void *cookie)
{
    (void)cookie;
    return 42;
}

Test(log, levels_and_silence)
{
    struct log l = { .level = LOG_WARN, .line = take_line, .cookie = &lines };

    log_at(NULL, LOG_ERROR, "nobody hears");
    log_info(&l, "dropped");
    log_debug(&l, "dropped");
    cr_assert_eq(lines, 0);
    log_warn(&l, "tensor %d of %s", 3, "x");
    cr_assert_eq(lines, 1);
    cr_assert_str_eq(logged, "tensor 3 of x");
    log_warn(&l, "%s", "a\x1b]0;x\a");
    cr_assert_str_eq(logged, "a?]0;x?");
    log_at(&l, LOG_ERROR, "%03000d", 5);
    cr_assert_eq(strlen(logged), 3000);
    log_progress(NULL, "s", 1, 2, "u");
    log_progress(&l, "s", 1, 2, "u");
    cr_assert_eq(log_cancelled(NULL), 0);
    cr_assert_eq(log_cancelled(&l), 0);
    l.progress = take_progress;
    l.cancelled = say_stop;
    log_progress(&l, "read", 1, 2, "bytes");
    cr_assert_str_eq(logged, "read 1/2 bytes");
    cr_assert_eq(log_cancelled(&l), 1);
}

Test(cpu, the_mask_only_takes_away)
{
    struct err e = ERR_INIT;
    unsigned all = cpu_features();

    cr_assert_eq(cpu_mask_by_name("scalar", &e), 0);
    cr_assert_eq(cpu_features(), 0);
    cr_assert_eq(cpu_mask_by_name("avx2", &e), 0);
    cr_assert_eq(cpu_features(), all & CPU_AVX2);
    cr_assert_eq(cpu_mask_by_name("auto", &e), 0);
    cr_assert_eq(cpu_features(), all);
    cr_assert_eq(cpu_mask_by_name("sse9", &e), -1);
    cr_assert_eq(e.code, ERR_USAGE);
    cr_assert_not_null(strstr(e.text, "'sse9'"));
    cr_assert_eq(cpu_features(), all);
    if (all & CPU_AVX512)
        cr_assert(all & CPU_AVX2);
    cr_assert_geq(cpu_count(), 1);
}
