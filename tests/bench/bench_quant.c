/*
 * Speed of palettization on one thread, and its result for other programs
 * to look at.
 *
 *     bench_quant [seconds per figure]
 *     bench_quant --dump BITS GROUP ROWS COLS bf16|f16 IN OUT
 *
 * The first form prints, for groups of synthetic bfloat16 weights, millions
 * of weights a second and the time of each stage. The second reads ROWS x
 * COLS raw little-endian values from IN and writes OUT: all tables (fp16),
 * then the packed indices, and prints the squared error.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "converter/base/mem.h"
#include "quant/kmeans.h"
#include "quant/stages.h"

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)((seed >> 11) + 1) / 9007199254740993.0;
}

static double gauss(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static double student5(void)
{
    double s = 0;
    int i;

    for (i = 0; i < 5; i++) {
        double g = gauss();

        s += g * g;
    }
    return gauss() / sqrt(s / 5);
}

static double now(void)
{
    struct timespec t;

    /* Of this thread alone: other load does not count. */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int die(const struct err *e)
{
    fprintf(stderr, "bench_quant: %s\n", e->text);
    return 1;
}

enum { POOL = 64, ROWS = 8 };

static void weights(uint16_t *v, size_t cols, int tails)
{
    size_t i, row;

    for (row = 0; row < POOL * ROWS; row++) {
        double scale = 0.02 * exp(0.25 * gauss());

        for (i = 0; i < cols; i++)
            v[row * cols + i] =
                f32_to_bf16((float)(scale * (tails ? student5() : gauss())));
    }
}

struct times {
    double count, table, solve, assign, pack, all;
    double passes, distance, states;
};

/* Each stage over the whole pool, the best of as many rounds as fit. */
static int measure(struct qz_scratch *s, const uint16_t *v, size_t n, int bits,
                   double seconds, struct times *t, struct err *e)
{
    static uint8_t idx[ROWS * 4096], packed[ROWS * 4096];
    uint32_t borders[QZ_MAX_CLUSTERS + 1];
    f16_t table[QZ_MAX_CLUSTERS];
    struct qz_solve_info info;
    struct qz_result r;
    double end = now() + seconds, t0, t1;
    struct times best = { 9, 9, 9, 9, 9, 9, 0, 0, 0 };
    int rounds = 0;

    while (rounds++ == 0 || now() < end) {
        struct times one = { 0 };
        size_t g, bad;

        for (g = 0; g < POOL; g++) {
            const uint16_t *w = v + g * n;
            struct qz_span span = QZ_SPAN_INIT;

            t0 = now();
            if (qz_group(s, w, NULL, n, QZ_BF16, 0, bits, table, idx, &r, &bad,
                         e))
                return -1;
            qz_pack(packed, idx, n, bits);
            t1 = now();
            one.all += t1 - t0;

            qz_kmeans_info(s->km, &info);
            one.passes += info.passes;
            one.distance += info.distance;
            one.states += (double)info.states;
            t0 = now();
            if (s->m > (size_t)1 << bits &&
                qz_kmeans_solve(s->km, 1 << bits, QZ_AUTO, borders, e))
                return -1;
            t1 = now();
            one.solve += t1 - t0;
            qz_count(s->counts, &span, w, n);
            s->m = qz_compact(s->counts, &span, s->keys, s->w);
            t0 = now();
            one.count += t0 - t1;
            if (qz_table(s, &span, QZ_BF16, 0, bits, table, &r, e))
                return -1;
            t1 = now();
            one.table += t1 - t0;
            qz_nearest_set(s->nearest, table, bits, QZ_BF16, 0, &span);
            qz_nearest_map(s->nearest, idx, w, n);
            t0 = now();
            one.assign += t0 - t1;
            qz_pack(packed, idx, n, bits);
            one.pack += now() - t0;
        }
        if (one.all < best.all)
            best = one;
    }
    *t = best;
    return 0;
}

static int bench(double seconds, struct err *e)
{
    static const int widths[] = { 2, 3, 4, 6, 8 };
    static uint16_t v[POOL * ROWS * 3072];
    struct qz_scratch *s = qz_scratch_new(e);
    int c, tails;
    size_t w;

    if (s == NULL)
        return -1;
    printf("group   weights   bits  Mweights/s  us/group: count solve "
           "table-solve assign pack  passes distance states\n");
    for (c = 1024; c <= 3072; c += 2048)
        for (tails = 0; tails < 2; tails++) {
            size_t n = (size_t)(ROWS * c);

            weights(v, (size_t)c, tails);
            for (w = 0; w < sizeof widths / sizeof widths[0]; w++) {
                struct times t;

                if (measure(s, v, n, widths[w], seconds, &t, e)) {
                    qz_scratch_free(s);
                    return -1;
                }
                printf("%d x %d  %-8s  %d  %7.1f     %6.1f  %6.1f %6.1f "
                       "%6.1f %6.1f   %.2f %.2f %.0f\n",
                       ROWS, c, tails ? "t5" : "gauss", widths[w],
                       1e-6 * (double)(n * POOL) / t.all, 1e6 * t.count / POOL,
                       1e6 * t.solve / POOL, 1e6 * (t.table - t.solve) / POOL,
                       1e6 * t.assign / POOL, 1e6 * t.pack / POOL,
                       t.passes / POOL, t.distance / POOL, t.states / POOL);
                fflush(stdout);
            }
        }
    qz_scratch_free(s);
    return 0;
}

struct file {
    FILE *in;
    uint64_t cols;
};

static int read_rows(void *cookie, uint64_t row, uint64_t n, uint16_t *dst,
                     struct err *e)
{
    struct file *f = cookie;
    size_t want = (size_t)(n * f->cols);

    if (fseek(f->in, (long)(row * f->cols * 2), SEEK_SET) != 0 ||
        fread(dst, 2, want, f->in) != want)
        return err_set(e, ERR_IO, "input too short");
    return 0;
}

static int dump_all(struct qz_palette *p, FILE *out, struct err *e)
{
    size_t bytes = (size_t)qz_palette_index_bytes(p);
    size_t elems = (size_t)qz_palette_table_elems(p);
    uint8_t *packed = mem_alloc(bytes, 1, e), *tables = mem_alloc(elems, 2, e);
    struct qz_stats st;
    int rc = -1;

    if (packed != NULL && tables != NULL &&
        qz_palette_read_indices(p, 0, packed, bytes, e) == 0 &&
        qz_palette_read_tables(p, 0, tables, 2 * elems, e) == 0) {
        rc = 0;
        if (fwrite(tables, 2, elems, out) != elems ||
            fwrite(packed, 1, bytes, out) != bytes)
            rc = err_set(e, ERR_IO, "cannot write");
        qz_palette_stats(p, &st);
        printf("%.17g\n", st.sse);
    }
    mem_free(packed);
    mem_free(tables);
    return rc;
}

static int dump(char **arg, struct err *e)
{
    struct qz_source src = { 0 };
    struct file f;
    struct qz_palette *p;
    FILE *out;
    int bits = (int)strtol(arg[0], NULL, 10), rc;

    src.rows = strtoull(arg[2], NULL, 10);
    src.cols = f.cols = strtoull(arg[3], NULL, 10);
    src.format = strcmp(arg[4], "bf16") == 0 ? QZ_BF16 : QZ_F16;
    src.read_rows = read_rows;
    src.cookie = &f;
    f.in = fopen(arg[5], "rb");
    out = fopen(arg[6], "wb");
    if (f.in == NULL || out == NULL) {
        if (f.in != NULL)
            fclose(f.in);
        if (out != NULL)
            fclose(out);
        return err_set(e, ERR_IO, "cannot open the files");
    }
    p = qz_palette_new(&src, bits, strtoull(arg[1], NULL, 10), NULL, e);
    rc = p == NULL ? -1 : dump_all(p, out, e);
    qz_palette_free(p);
    fclose(f.in);
    if (fclose(out) != 0 && rc == 0)
        rc = err_set(e, ERR_IO, "cannot write");
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;

    if (argc == 9 && strcmp(argv[1], "--dump") == 0)
        return dump(argv + 2, &e) ? die(&e) : 0;
    if (argc > 2) {
        fprintf(stderr, "usage: bench_quant [seconds] | --dump BITS GROUP "
                        "ROWS COLS bf16|f16 IN OUT\n");
        return 2;
    }
    return bench(argc == 2 ? strtod(argv[1], NULL) : 0.3, &e) ? die(&e) : 0;
}
