/*
 * Speed of the floor: number blocks, JSON, hash, parallel-for, file copy.
 * Prints the best of several runs. Built with the thread sanitizer it is
 * also the race check of the pool and of parallel JSON reading.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "converter/base/buf.h"
#include "converter/base/cpu.h"
#include "converter/base/hash.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/base/par.h"

#define ELEMS ((size_t)1 << 20) /* per block call: past the caches' lowest */
#define RUNS 9

static double now(void)
{
    struct timespec t = { 0 };

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *wide;
static uint16_t *narrow, *other;
static struct num_stats stats;

static void do_bf16_to_f16(void)
{
    num_bf16_to_f16(other, narrow, ELEMS);
}

static void do_bf16_to_f32(void)
{
    num_bf16_to_f32(wide, narrow, ELEMS);
}

static void do_f16_to_f32(void)
{
    num_f16_to_f32(wide, narrow, ELEMS);
}

static void do_f32_to_f16(void)
{
    num_f32_to_f16(other, wide, ELEMS);
}

static void do_f32_to_bf16(void)
{
    num_f32_to_bf16(other, wide, ELEMS);
}

static void do_round_f16(void)
{
    num_round_f16(wide, wide, ELEMS);
}

static void do_stats(void)
{
    num_stats_f32(&stats, wide, ELEMS, 0);
}

static void do_hash(void)
{
    stats.n += hash_bytes(wide, ELEMS * 4).lo & 1;
}

static void bench_block(const char *name, void (*fn)(void), size_t bytes)
{
    double best = 1e9;

    for (int run = 0; run < RUNS; run++) {
        double t = now();

        fn();
        t = now() - t;
        best = t < best ? t : best;
    }
    printf("  %-14s %7.2f GB/s of source\n", name, (double)bytes / best / 1e9);
}

static void bench_blocks(const char *level, struct err *e)
{
    if (cpu_mask_by_name(level, e))
        return;
    printf("blocks of %zu, --cpu=%s\n", ELEMS, level);
    for (size_t i = 0; i < ELEMS; i++) /* near 1, as weights are */
        narrow[i] = (uint16_t)(0x3c00 + i * 37 % 0x400 + (i % 3 << 15));
    bench_block("bf16_to_f16", do_bf16_to_f16, ELEMS * 2);
    bench_block("f16_to_f32", do_f16_to_f32, ELEMS * 2);
    bench_block("bf16_to_f32", do_bf16_to_f32, ELEMS * 2);
    bench_block("f32_to_f16", do_f32_to_f16, ELEMS * 4);
    bench_block("f32_to_bf16", do_f32_to_bf16, ELEMS * 4);
    bench_block("round_f16", do_round_f16, ELEMS * 4);
    bench_block("stats_f32", do_stats, ELEMS * 4);
    bench_block("hash", do_hash, ELEMS * 4);
}

/* A vocabulary of n words and a list of merges, as tokenizers ship them. */
static void make_vocabulary(struct buf *b, int n)
{
    buf_puts(b, "{\"model\": {\"vocab\": {\n");
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s\"\\u0120word%d\": %d", i > 0 ? ",\n" : "", i, i);
    buf_puts(b, "}, \"merges\": [\n");
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s[\"wo\", \"rd%d\"]", i > 0 ? ",\n" : "", i);
    buf_puts(b, "]}}");
}

static void read_vocabulary(void *arg, uint64_t begin, uint64_t end, int worker)
{
    const struct buf *b = arg;

    (void)worker;
    for (; begin < end; begin++) {
        struct err e = ERR_INIT;
        struct js_doc *d = js_parse(b->data, b->len, &e);

        if (d == NULL)
            printf("  %s\n", e.text);
        js_free(d);
    }
}

static void bench_json(struct err *e)
{
    struct buf b = BUF_INIT;
    const struct js_node *vocab, *m;
    struct js_doc *d;
    struct par *p;
    int n = 262144;
    double t;

    make_vocabulary(&b, n);
    t = now();
    d = js_parse(b.data, b.len, e);
    t = now() - t;
    if (d == NULL)
        return;
    printf("json: %d words and merges, %.1f MB: parse %.0f ms\n", n,
           (double)b.len / 1e6, t * 1e3);
    vocab = js_get(js_get(js_root(d), "model"), "vocab");
    t = now();
    for (m = js_first(vocab); m != NULL; m = js_next(m))
        if (js_get(vocab, js_key(m)) != m)
            printf("  a look-up failed\n");
    printf("  every word looked up in %.0f ms\n", (now() - t) * 1e3);
    js_free(d);
    b.len = 0;
    make_vocabulary(&b, 1000);
    p = par_new(4, e);
    if (p != NULL)
        par_for(p, 16, 1, read_vocabulary, &b);
    par_free(p);
    buf_release(&b);
}

static void touch(void *arg, uint64_t begin, uint64_t end, int worker)
{
    uint64_t *sums = arg;

    (void)worker;
    for (; begin < end; begin++)
        sums[begin * 8] += begin;
}

static void bench_par(struct err *e)
{
    uint64_t sums[64 * 8] = { 0 };

    for (int width = 2; width <= 4; width += 2) {
        struct par *p = par_new(width, e);
        double t = now();

        if (p == NULL)
            return;
        for (int i = 0; i < 20000; i++)
            par_for(p, 64, 4, touch, sums);
        printf("par_for of 64 small tasks, width %d: %.1f us\n", par_width(p),
               (now() - t) / 20000 * 1e6);
        par_free(p);
    }
}

int main(void)
{
    struct err e = ERR_INIT;

    wide = mem_zalloc(ELEMS, sizeof *wide, &e);
    narrow = mem_zalloc(ELEMS, sizeof *narrow, &e);
    other = mem_zalloc(ELEMS, sizeof *other, &e);
    if (wide != NULL && narrow != NULL && other != NULL) {
        bench_blocks("scalar", &e);
        bench_blocks("auto", &e);
        bench_json(&e);
        bench_par(&e);
    }
    mem_free(wide);
    mem_free(narrow);
    mem_free(other);
    if (e.code != ERR_OK)
        printf("%s\n", e.text);
    return err_exit_code(&e);
}
