/*
 * Speed of the runtime, side by side with what the machine can do.
 *
 *     bench_run [--threads N] [--blas LIBRARY SYMBOL]
 *
 * prefill: a chain of 1x1 convolutions with fp16 weights over 64 positions,
 * in GFLOP/s; with --blas also the same products by that library's sgemm
 * (for instance numpy's OpenBLAS, symbol scipy_cblas_sgemm64_; set
 * OPENBLAS_NUM_THREADS to the same number of threads).
 * decode: the same chain for one position, in bytes of weights a second,
 * beside the bandwidth of a plain read of as many bytes.
 * layer: one decoder layer of the 0.6B shape, with its cache.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

#define PAIRS 24
#define HIDDEN 1024
#define INNER 3072
#define POSITIONS 64

static struct err e;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(int rc)
{
    if (rc) {
        fprintf(stderr, "bench_run: %s\n", e.text);
        exit(3);
    }
}

/* Weights come from a generator: distinct, small, never equal blobs. */
static int noise(void *cookie, uint64_t offset, void *dst, size_t n,
                 struct err *err)
{
    uint64_t s = (uint64_t)(uintptr_t)cookie + offset;
    unsigned char *p = dst;

    (void)err;
    for (size_t i = 0; i + 2 <= n; i += 2) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        store_le16(p + i, (uint16_t)(0x1c00u | (s >> 33 & 0x83ff)));
    }
    return 0;
}

static struct mil_data weights[2 * PAIRS + 16];
static int n_weights;

static const struct mil_data *weight(int64_t out, int64_t in)
{
    struct mil_data *d = &weights[n_weights++];

    d->type = mil_type_make(MIL_F16, 4, (int64_t[]){ out, in, 1, 1 });
    d->bytes = (uint64_t)(out * in) * 2;
    d->read = noise;
    d->cookie = d;
    return d;
}

static struct run_tensor input(const char *name, enum mil_dtype d, int rank,
                               const int64_t *dims, const void *data)
{
    struct run_tensor t = { name, mil_type_make(d, rank, dims), data };

    return t;
}

static struct run_model *open_program(const struct mil_program *p,
                                      struct par *par)
{
    struct run_options o = { .profile = RUN_FP16, .par = par };
    struct run_model *m = run_open(p, &o, &e);

    check(m ? 0 : -1);
    return m;
}

static double best_call(struct run_model *m, const char *f,
                        struct run_states *s, const struct run_tensor *in,
                        size_t n_in, int times)
{
    double best = 1e9;

    for (int i = 0; i < times; i++) {
        struct run_tensor out;
        size_t n;
        double t = now();

        check(run_call(m, f, s, in, n_in, &out, 1, &n, &e));
        t = now() - t;
        best = t < best ? t : best;
    }
    return best;
}

/* ---- products ---- */

static struct mil_program *chain(void)
{
    struct mil_program *p = mil_program_new(&e);
    const struct mil_data *w[2 * PAIRS];

    check(p ? 0 : -1);
    for (int i = 0; i < PAIRS; i++) {
        w[2 * i] = weight(INNER, HIDDEN);
        w[2 * i + 1] = weight(HIDDEN, INNER);
    }
    for (int f = 0; f < 2; f++) {
        struct mb b;
        mil_ref x;

        mb_begin(&b, p, f ? "prefill" : "infer");
        x = mb_input(&b, "x", MIL_F16, 4,
                     (int64_t[]){ 1, HIDDEN, 1, f ? POSITIONS : 1 });
        for (int i = 0; i < 2 * PAIRS; i++)
            x = mb_conv1x1(&b, x, mb_data(&b, "w", w[i]), 0);
        mb_output(&b, "y", x);
        check(mb_end(&b, &e));
    }
    return p;
}

typedef void (*sgemm_fn)(int order, int ta, int tb, int64_t m, int64_t n,
                         int64_t k, float alpha, const float *a, int64_t lda,
                         const float *b, int64_t ldb, float beta, float *c,
                         int64_t ldc);

static sgemm_fn load_blas(const char *path, const char *symbol)
{
    void *lib = dlopen(path, RTLD_NOW), *f = lib ? dlsym(lib, symbol) : NULL;
    sgemm_fn fn = NULL;

    if (f)
        memcpy(&fn, &f, sizeof(fn)); /* ISO C has no other way */
    else
        fprintf(stderr, "bench_run: %s: no %s\n", path, symbol);
    return fn;
}

/* The same products as the chain's, weights in float and warm. */
static double blas_seconds(sgemm_fn f)
{
    size_t wn = (size_t)HIDDEN * INNER, xn = (size_t)INNER * POSITIONS;
    float *w = mem_zalloc(wn, sizeof(float), &e);
    float *x = mem_zalloc(xn, sizeof(float), &e);
    float *y = mem_zalloc(xn, sizeof(float), &e);
    double best = 1e9;

    check(w && x && y ? 0 : -1);
    for (size_t i = 0; i < wn; i++)
        w[i] = (float)(i % 17) * 0.01f;
    for (int r = 0; r < 5; r++) {
        double t = now();

        for (int i = 0; i < PAIRS; i++) {
            f(101, 111, 111, INNER, POSITIONS, HIDDEN, 1, w, HIDDEN, x,
              POSITIONS, 0, y, POSITIONS);
            f(101, 111, 111, HIDDEN, POSITIONS, INNER, 1, w, INNER, y,
              POSITIONS, 0, x, POSITIONS);
        }
        t = now() - t;
        best = t < best ? t : best;
    }
    mem_free(w);
    mem_free(x);
    mem_free(y);
    return best;
}

/* ---- bandwidth ---- */

struct reader {
    const uint64_t *p;
    uint64_t sums[64];
};

static void read_range(void *arg, uint64_t begin, uint64_t end, int worker)
{
    struct reader *r = arg;
    uint64_t a = 0, b = 0, c = 0, d = 0;

    for (uint64_t i = begin * 4; i < end * 4; i += 4) {
        a += r->p[i];
        b += r->p[i + 1];
        c += r->p[i + 2];
        d += r->p[i + 3];
    }
    r->sums[worker] += a + b + c + d;
}

static double read_seconds(struct par *par, uint64_t bytes)
{
    uint64_t *p = mem_alloc_aligned(bytes / 8, 8, &e);
    struct reader r = { .p = p };
    double best = 1e9;

    check(p ? 0 : -1);
    memset(p, 1, bytes);
    for (int i = 0; i < 7; i++) {
        double t = now();

        par_for(par, bytes / 32, 32768, read_range, &r);
        t = now() - t;
        best = t < best ? t : best;
    }
    mem_free(p);
    return best;
}

/* ---- one decoder layer ---- */

#define HEADS 16
#define KV 8
#define HD 128
#define CTX 512

static mil_ref heads(struct mb *b, mil_ref x, int32_t n, int32_t t)
{
    return MB_TRANSPOSE(b, MB_RESHAPE(b, x, 1, n, HD, t), 0, 1, 3, 2);
}

static mil_ref norm(struct mb *b, mil_ref x)
{
    mil_ref neg = MB(b, mul, .x = x, .y = mb_f16(b, -1));
    mil_ref y = MB(b, concat, .values = MB_REFS(x, neg), .axis = mb_int(b, -1));

    y = MB(b, layer_norm, .x = y, .axes = MB_INTS(b, -1),
           .epsilon = mb_f16(b, 1e-6));
    return MB(b, slice_by_index, .x = y, .begin = MB_INTS(b, 0, 0, 0),
              .end = MB_INTS(b, 0, 0, (int32_t)mb_dim(b, x, 2)),
              .end_mask = MB_BOOLS(b, true, true, false));
}

static mil_ref to_cache(struct mb *b, mil_ref st, mil_ref pos, mil_ref x,
                        int32_t slot, int32_t t)
{
    mil_ref end = MB(b, add, .x = pos, .y = MB_INTS(b, t));
    mil_ref zero = MB_INTS(b, 0);
    mil_ref begin =
        MB(b, concat, .values = MB_REFS(MB_INTS(b, slot), zero, pos, zero),
           .axis = mb_int(b, 0));
    mil_ref stop = MB(b, concat,
                      .values = MB_REFS(MB_INTS(b, slot + 1), MB_INTS(b, KV),
                                        end, MB_INTS(b, HD)),
                      .axis = mb_int(b, 0));
    mil_ref y = MB(b, slice_update, .x = MB(b, read_state, .input = st),
                   .update = x, .begin = begin, .end = stop);

    MB(b, write_state, .input = st, .data = y);
    y = MB(b, read_state, .input = st);
    return MB(b, slice_by_size, .x = y, .begin = MB_INTS(b, slot, 0, 0, 0),
              .size = MB_INTS(b, 1, KV, CTX, HD));
}

struct layer {
    const struct mil_data *q, *k, *v, *o, *gate, *up, *down;
};

static mil_ref mlp(struct mb *b, mil_ref x, const struct layer *w, int32_t t)
{
    mil_ref h =
        MB_RESHAPE(b, MB_TRANSPOSE(b, norm(b, x), 0, 2, 1), 1, HIDDEN, 1, t);
    mil_ref g = mb_conv1x1(b, h, mb_data(b, "gate", w->gate), 0);
    mil_ref u = mb_conv1x1(b, h, mb_data(b, "up", w->up), 0);
    mil_ref s = MB(b, tanh, .x = g);

    s = MB(b, mul, .x = MB(b, add, .x = s, .y = mb_f16(b, 1)), .y = g);
    s = mb_conv1x1(b, MB(b, mul, .x = s, .y = u), mb_data(b, "down", w->down),
                   0);
    s = MB_TRANSPOSE(b, MB_RESHAPE(b, s, 1, HIDDEN, t), 0, 2, 1);
    return MB(b, add, .x = x, .y = s);
}

static mil_ref attention(struct mb *b, mil_ref x, mil_ref mask, mil_ref st,
                         mil_ref pos, const struct layer *w, int32_t t)
{
    mil_ref h =
        MB_RESHAPE(b, MB_TRANSPOSE(b, norm(b, x), 0, 2, 1), 1, HIDDEN, 1, t);
    mil_ref q = heads(b, mb_conv1x1(b, h, mb_data(b, "q", w->q), 0), HEADS, t);
    mil_ref k = heads(b, mb_conv1x1(b, h, mb_data(b, "k", w->k), 0), KV, t);
    mil_ref v = heads(b, mb_conv1x1(b, h, mb_data(b, "v", w->v), 0), KV, t);
    mil_ref s, o;

    k = MB_RESHAPE(b, to_cache(b, st, pos, k, 0, t), KV, 1, CTX, HD);
    v = MB_RESHAPE(b, to_cache(b, st, pos, v, 1, t), KV, 1, CTX, HD);
    q = MB_RESHAPE(b, q, KV, HEADS / KV, t, HD);
    s = MB(b, matmul, .x = q, .y = k, .transpose_y = mb_bool(b, true));
    s = MB(b, softmax, .x = MB(b, add, .x = s, .y = mask));
    o = MB_RESHAPE(b, MB(b, matmul, .x = s, .y = v), 1, HEADS, t, HD);
    o = MB_RESHAPE(b, MB_TRANSPOSE(b, o, 0, 1, 3, 2), 1, HEADS * HD, 1, t);
    o = mb_conv1x1(b, o, mb_data(b, "o", w->o), 0);
    o = MB_TRANSPOSE(b, MB_RESHAPE(b, o, 1, HIDDEN, t), 0, 2, 1);
    return MB(b, add, .x = x, .y = o);
}

static struct mil_program *layer_program(void)
{
    struct mil_program *p = mil_program_new(&e);
    struct layer w = { weight(HEADS * HD, HIDDEN), weight(KV * HD, HIDDEN),
                       weight(KV * HD, HIDDEN),    weight(HIDDEN, HEADS * HD),
                       weight(INNER, HIDDEN),      weight(INNER, HIDDEN),
                       weight(HIDDEN, INNER) };

    check(p ? 0 : -1);
    for (int f = 0; f < 2; f++) {
        int32_t t = f ? POSITIONS : 1;
        struct mb b;

        mb_begin(&b, p, f ? "prefill" : "infer");
        mil_ref x = mb_input(&b, "x", MIL_F16, 3, (int64_t[]){ 1, t, HIDDEN });
        mil_ref mask =
            mb_input(&b, "mask", MIL_F16, 4, (int64_t[]){ 1, 1, t, CTX });
        mil_ref pos = mb_input(&b, "pos", MIL_I32, 1, (int64_t[]){ 1 });
        mil_ref st = mb_state(&b, "kv", 4, (int64_t[]){ 2, KV, CTX, HD });

        x = attention(&b, x, mask, st, pos, &w, t);
        mb_output(&b, "y", mlp(&b, x, &w, t));
        check(mb_end(&b, &e));
    }
    return p;
}

static void bench_layer(struct par *par)
{
    struct mil_program *p = layer_program();
    struct run_model *m = open_program(p, par);
    struct run_states *s = run_states_new(&e);
    float *x = mem_zalloc((size_t)POSITIONS * HIDDEN, sizeof(float), &e);
    float *mask = mem_zalloc((size_t)POSITIONS * CTX, sizeof(float), &e);
    int32_t pos = 100;
    struct run_tensor in[3];

    check(s && x && mask ? 0 : -1);
    for (int i = 0; i < POSITIONS * HIDDEN; i++)
        x[i] = (float)(i % 29) / 29.0f - 0.5f;
    in[2] = input("pos", MIL_I32, 1, (int64_t[]){ 1 }, &pos);
    for (int f = 0; f < 2; f++) {
        int64_t t = f ? POSITIONS : 1;
        double sec;

        in[0] = input("x", MIL_F16, 3, (int64_t[]){ 1, t, HIDDEN }, x);
        in[1] = input("mask", MIL_F16, 4, (int64_t[]){ 1, 1, t, CTX }, mask);
        sec = best_call(m, f ? "prefill" : "infer", s, in, 3, 20);
        printf("layer, 0.6B shape, ctx %d: %2d position%s %8.3f ms\n", CTX,
               (int)t, f ? "s" : " ", 1e3 * sec);
    }
    mem_free(x);
    mem_free(mask);
    run_close(m);
    run_states_free(s);
    mil_program_free(p);
}

static void bench_chain(struct par *par, sgemm_fn blas)
{
    struct mil_program *p = chain();
    struct run_model *m = open_program(p, par);
    uint64_t elems = (uint64_t)2 * PAIRS * HIDDEN * INNER;
    double flops = 2.0 * (double)elems * POSITIONS, t, r;
    float *x = mem_zalloc((size_t)HIDDEN * POSITIONS, sizeof(float), &e);
    struct run_tensor in;

    check(x ? 0 : -1);
    in = input("x", MIL_F16, 4, (int64_t[]){ 1, HIDDEN, 1, POSITIONS }, x);
    t = best_call(m, "prefill", NULL, &in, 1, 5);
    printf("prefill, %d positions: %7.1f GFLOP/s\n", POSITIONS,
           1e-9 * flops / t);
    if (blas) {
        r = blas_seconds(blas);
        printf("  sgemm of the library: %7.1f GFLOP/s, ratio %.2f\n",
               1e-9 * flops / r, r / t);
    }
    in = input("x", MIL_F16, 4, (int64_t[]){ 1, HIDDEN, 1, 1 }, x);
    t = best_call(m, "infer", NULL, &in, 1, 7);
    r = read_seconds(par, elems * 2);
    printf("decode: %7.2f GB/s of weights, plain read %7.2f GB/s, ratio "
           "%.2f\n",
           2e-9 * (double)elems / t, 2e-9 * (double)elems / r, r / t);
    mem_free(x);
    run_close(m);
    mil_program_free(p);
}

int main(int argc, char **argv)
{
    int threads = 0;
    sgemm_fn blas = NULL;
    struct par *par;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--blas") == 0 && i + 2 < argc) {
            blas = load_blas(argv[i + 1], argv[i + 2]);
            i += 2;
        } else {
            fprintf(stderr, "usage: bench_run [--threads N] "
                            "[--blas LIBRARY SYMBOL]\n");
            return 2;
        }
    }
    par = par_new(threads, &e);
    check(par ? 0 : -1);
    printf("%d threads\n", par_width(par));
    bench_chain(par, blas);
    bench_layer(par);
    par_free(par);
    return 0;
}
