/*
 * Runs a fuzz target without libFuzzer: on every file of a corpus, and on
 * mutations of each that are the same on every machine.
 *
 *   fuzz_x CORPUS [MUTATIONS]     (300 of each file)
 *   fuzz_x FILE                   that file alone
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "tests/fuzz/target.h"

#define GROWTH 64

static uint64_t seed = 1;

static uint64_t next_random(uint64_t below) /* splitmix64 */
{
    uint64_t z = (seed += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

/* What parsers stumble over: borders of lengths and counts. */
static const uint8_t borders[] = { 0x00, 0x01, 0x7f, 0x80, 0xff, '"',  '{', '}',
                                   '[',  ']',  ',',  ':',  '-',  '\\', 'e', 0 };

static size_t mutate(uint8_t *p, size_t n)
{
    size_t at = n ? (size_t)next_random(n) : 0, len, from;

    switch (next_random(6)) {
    case 0: /* cut */ return at;
    case 1:
        if (n)
            p[at] ^= (uint8_t)(1u << next_random(8));
        return n;
    case 2:
        if (n)
            p[at] = borders[next_random(sizeof(borders))];
        return n;
    case 3: /* insert */
        len = 1 + (size_t)next_random(8);
        memmove(p + at + len, p + at, n - at);
        memset(p + at, borders[next_random(sizeof(borders))], len);
        return n + len;
    case 4: /* remove */
        len = n ? 1 + (size_t)next_random(n - at < 8 ? n - at : 8) : 0;
        memmove(p + at, p + at + len, n - at - len);
        return n - len;
    default: /* repeat a piece elsewhere */
        from = n ? (size_t)next_random(n) : 0;
        len = n - (at > from ? at : from);
        len = len > 16 ? 16 : len;
        memmove(p + at, p + from, len);
        return n;
    }
}

/* The target may not keep or change its input, and must not read beyond it:
 * it gets a block of the exact size. */
static int feed(const uint8_t *p, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    int rc;

    if (!exact)
        return 1;
    memcpy(exact, p, n);
    rc = LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return rc;
}

static int file(const char *path, long mutations)
{
    uint8_t *original, *p;
    FILE *f = fopen(path, "rb");
    size_t n;
    int rc;

    if (!f)
        return perror(path), 1;
    original = malloc(1u << 20);
    p = malloc((1u << 20) + 8 * GROWTH);
    n = original && p ? fread(original, 1, 1u << 20, f) : 0;
    fclose(f);
    rc = !original || !p || feed(original, n);
    for (long i = 0; !rc && i < mutations; i++) {
        size_t m = n;

        memcpy(p, original, n);
        for (uint64_t k = 1 + next_random(4); k; k--)
            m = mutate(p, m);
        rc = feed(p, m);
    }
    free(original);
    free(p);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    char **names = NULL, *path;
    long mutations = argc > 2 ? strtol(argv[2], NULL, 10) : 300;
    size_t n = 0;
    int rc = 0;

    if (argc < 2)
        return fprintf(stderr, "usage: %s CORPUS [MUTATIONS]\n", argv[0]), 2;
    if (!io_is_dir(argv[1]))
        return file(argv[1], 0);
    if (io_list(argv[1], &names, &n, &e) || !n)
        return fprintf(stderr, "%s: %s\n", argv[1], n ? e.text : "empty"), 1;
    for (size_t i = 0; !rc && i < n; i++) {
        path = io_join(argv[1], names[i], &e);
        rc = !path || file(path, mutations);
        mem_free(path);
    }
    io_list_free(names, n);
    printf("%zu files, %ld mutations of each\n", n, mutations);
    return rc;
}
